"""`make mutants-generated`: mutants that a tool generates, where those of `mutations` are thought of by people.

mutmut changes one operator, number, argument or text at a time in the modules that carry a privacy figure, and runs the
fast tests that reach the changed function. This module prepares a copy of the sources for it, calls it, and writes a
report of the mutants that survive. Each survivor is a missing test, or an entry in `equivalent.toml` with the reason
why it changes nothing.

    python tests/mutants/generate.py [MODULES...]     such as privacy/noise.py; without one, what has changed

Verdicts are kept in `out/mutants`, by function: the mutants of an unchanged function are not tried again, except those
that survived and are not listed in `equivalent.toml`. To forget all verdicts, for example after a test became weaker,
remove that folder. With MUTANTS_SECONDS=10, a mutant is tried with the fastest tests only (`fastest_first`).

mutmut mutates no function with a decorator, because a decorator may act when the function is defined. The decorators
here only wrap. So the copy calls them afterwards (`f = decorator(f)`), and properties and cached functions are mutated
like others. Errors are not mutated: their texts are tested where they matter. Neither are constants of modules and
fields of classes, which mutmut leaves alone.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from survivors import equivalents, reason_of, survivor, write_report

ROOT = Path(__file__).resolve().parents[2]
STAGE = ROOT / "out" / "mutants"
PACKAGES = {"tensafe_api": ROOT / "crds" / "tensafe_api", "tensorguard": ROOT / "trainer_image" / "tensorguard"}
MUTATED = (
    "tensafe_api/accounting/accountant_choice.py",
    "tensafe_api/accounting/composition.py",
    "tensafe_api/accounting/calibration.py",
    "tensafe_api/accounting/dp_library.py",
    "tensafe_api/accounting/loss_intervals.py",
    "tensafe_api/resources/mechanism.py",
    "tensafe_api/resolve.py",
    "tensafe_api/statement/contents.py",
    "tensorguard/aggregation/*",
    "tensorguard/ledger/*",
    "tensorguard/privacy/*",
    "tensorguard/training/*",
)
TESTS = (
    "tests/api/test_accounting.py",
    "tests/api/test_calibration_search.py",
    "tests/api/test_discrete_noise.py",
    "tests/api/test_earlier_steps.py",
    "tests/api/test_privacy_events.py",
    "tests/api/test_resolve.py",
    "tests/api/test_resolve_noise.py",
    "tests/api/test_statement.py",
    "tests/trainer_image/aggregation",
    "tests/trainer_image/checkpoint",
    "tests/trainer_image/ledger",
    "tests/trainer_image/privacy",
    "tests/trainer_image/training",
)
BESIDE = (
    "docs/extending.md",
    "docs/reference/tensafetrainingjob.md",
    "e2e",
    "tests/conftest.py",
    "tests/api/conftest.py",
    "tests/api/statement.json",
    "tests/api/statement.md",
    "tests/trainer_image/conftest.py",
)
"""What the tests read or import besides the packages: copied, and not mutated."""

_CONFIGURATION = """\
[tool.mutmut]
source_paths = ["tensafe_api", "tensorguard"]
only_mutate = {mutated}
also_copy = ["docs", "e2e", "conftest.py", "tensafe_api", "tensorguard"]
process_isolation = "forkserver"
pytest_add_cli_args = ["--timeout=60", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
pytest_add_cli_args_test_selection = ["-m", "not (slow or ray or model or cluster or e2e)", {tests}]
timeout_multiplier = 5.0
timeout_constant = 8.0
on_dependency_change = "ignore"
use_git_change_detection = false

"""


def stage() -> None:
    """Bring the copy of sources and tests up to date. A file that has not changed keeps its time of change."""
    wanted = {
        **dict(sources()),
        **{file.relative_to(ROOT): file.read_bytes() for each in (*TESTS, *BESIDE) for file in files_of(ROOT / each)},
        Path("pyproject.toml"): configuration().encode(),
        Path("conftest.py"): Path(__file__).with_name("fastest_first.py").read_bytes(),
    }
    for path, content in wanted.items():
        target = STAGE / path
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for folder in (*PACKAGES, "tests", "e2e"):
        for file in (STAGE / folder).rglob("*.py"):
            if (path := file.relative_to(STAGE)) not in wanted:
                file.unlink()
                (STAGE / "mutants" / path).unlink(missing_ok=True)


def sources() -> Iterator[tuple[Path, bytes]]:
    """The files of the packages by their places in the copy, those to mutate as `prepare` writes them."""
    for name, folder in PACKAGES.items():
        for file in files_of(folder):
            path, content = Path(name) / file.relative_to(folder), file.read_bytes()
            mutated = any(path.match(pattern) for pattern in MUTATED)
            yield path, prepare(content.decode()).encode() if mutated else content


def files_of(source: Path) -> Iterator[Path]:
    """The file, or all files of a folder without bytecode."""
    for file in source.rglob("*") if source.is_dir() else (source,):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


def configuration() -> str:
    """The copy's pyproject.toml: pytest's settings are those of the project."""
    found = re.search(
        r"^\[tool\.pytest\.ini_options\]\n(?:(?!\[tool).*\n)+", (ROOT / "pyproject.toml").read_text(), re.M
    )
    assert found
    mutated = "[" + ", ".join(f'"{pattern}"' for pattern in MUTATED) + "]"
    return _CONFIGURATION.format(mutated=mutated, tests=", ".join(f'"{test}"' for test in TESTS)) + found[0]


def prepare(source: str) -> str:
    """`source` with decorators that are called after the function, and marks around each `raise`."""
    lines = source.splitlines()
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            decorators = [ast.unparse(each) for each in node.decorator_list]
            if decorators in (["staticmethod"], ["classmethod"]) or "overload" in decorators:
                continue
            for each in node.decorator_list:
                for number in range(each.lineno, (each.end_lineno or each.lineno) + 1):
                    lines[number - 1] = ""
            called = node.name
            for decorator in reversed(decorators):
                called = f"{decorator}({called})"
            after.setdefault(node.end_lineno or 0, []).append(" " * node.col_offset + f"{node.name} = {called}")
        if isinstance(node, ast.Raise):
            indent = " " * node.col_offset
            before.setdefault(node.lineno, []).append(indent + "# pragma: no mutate start")
            after.setdefault(node.end_lineno or 0, []).insert(0, indent + "# pragma: no mutate end")
    result: list[str] = []
    for number, line in enumerate(lines, start=1):
        result += [*before.get(number, ()), line, *after.get(number, ())]
    return "\n".join(result) + "\n"


def forget_survivors() -> None:
    """Let mutmut try the survivors again: a test may kill them now. Those of `equivalent.toml` stay: no test can."""
    known = equivalents()
    for meta in (STAGE / "mutants").rglob("*.meta"):
        module = meta.relative_to(STAGE / "mutants").as_posix().removesuffix(".meta")
        if not (STAGE / module).exists():
            continue
        found = json.loads(meta.read_text())
        codes = found["exit_code_by_key"]
        for name, code in codes.items():
            if code not in (1, None) and reason_of(survivor(STAGE, module, name, ""), known) is None:
                codes[name] = None
        meta.write_text(json.dumps(found, indent=4))


def open_mutants(modules: list[str]) -> list[str]:
    """mutmut's names of the mutants of `modules`, such as `privacy/noise.py`, that have no verdict.

    Where mutmut has not yet seen the source of a module, a pattern stands for all its mutants.
    """
    found: list[str] = []
    for module in modules:
        files = [path for path in STAGE.glob("tens*/**/*.py") if module in path.relative_to(STAGE).as_posix()]
        if not files:
            raise SystemExit(f"no module is named {module}")
        for file in files:
            path = file.relative_to(STAGE)
            mutated, meta = STAGE / "mutants" / path, STAGE / "mutants" / f"{path}.meta"
            if meta.exists() and mutated.stat().st_mtime > file.stat().st_mtime:
                codes = json.loads(meta.read_text())["exit_code_by_key"]
                found += [name for name, code in codes.items() if code is None]
            else:
                found.append(".".join(path.with_suffix("").parts) + ".*")
    return found


def build_s3_server() -> None:
    """Build the server that some tests start: a test has 60 seconds, and the first build takes longer.

    Where Go is unavailable, nothing is built, and those tests are skipped.
    """
    code = "from e2e.platform import gotools, s3\ntry: s3.executable()\nexcept gotools.GoUnavailable: pass"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def main(modules: list[str]) -> int:
    stage()
    build_s3_server()
    forget_survivors()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    mutmut = shutil.which("mutmut", path=str(Path(sys.executable).parent))
    if mutmut is None:
        raise SystemExit("mutmut is not installed: run `scripts/setup mutants`")
    names = open_mutants(modules)
    if names or not modules:
        at_once = os.environ.get("MUTANTS_AT_ONCE", str(os.cpu_count()))
        done = subprocess.run(
            [mutmut, "run", "--max-children", at_once, *names], cwd=STAGE, env=environment, check=False
        )
        if done.returncode:
            return done.returncode
    return write_report(STAGE, complete=not modules)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
