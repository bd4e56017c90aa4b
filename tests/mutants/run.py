"""`make mutants`: shows that the privacy tests can fail.

Applies each mutation of `mutations` in a copy of the source tree, never in the working tree, and runs its tests
there. Each of them must fail. The exit code is 1 if a test passes under its mutation (it then guards nothing), if a
test fails without any mutation, or if a mutation's text is no longer in the source. Each CPU has a copy of its own.

    python tests/mutants/run.py [WORDS...]     only the mutations with one of these words in their name

Each run of the tests is a fork of a process that has imported the libraries that the tests need, but no module of
the project. The imports of the libraries take ten seconds, most tests less than one.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

from mutations import MUTATIONS, Edit, Mutation

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("crds", "operator", "trainer_image", "tests", "e2e", "pyproject.toml")
PACKAGES = ("tensafe_api", "tensafe_operator", "tensorguard")
LIBRARIES = (
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "hypothesis",
    "mpmath",
    "opacus",
    "peft",
    "pyarrow",
    "pydantic",
    "pytest",
    "s3fs",
    "scipy.stats",
    "torch",
    "transformers",
)
"""What is imported before the forks. Where one is missing here, each fork imports it."""
_RED = re.compile(r"^FAILED (.+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)
"""A line of pytest's summary: the node id of a failed test, without its parameters."""


class Copy:
    """A copy of the source tree. Tests that run in it import the copied packages."""

    def __init__(self, root: Path) -> None:
        self._root = root
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copy(source, root / part)
        self._paths = [str(root / part) for part in ("crds", "operator", "trainer_image")]

    def check_imports(self) -> None:
        """Raise SystemExit unless Python imports the packages of the copy."""

        def check() -> int:
            found = [importlib.import_module(name).__file__ or "" for name in PACKAGES]
            print(*found)
            return 0 if all(Path(file).is_relative_to(self._root) for file in found) else 1

        code, found = self._fork(check)
        if code:
            raise SystemExit(f"Python imports {found.split()} instead of the copy: no mutation would have an effect")

    def failing(self, tests: tuple[str, ...]) -> set[str]:
        """Those of `tests` that fail. Variants that need an API server do not run: each test has one without.

        Raises:
            ValueError: when pytest cannot run them.
        """

        def run() -> int:
            import pytest

            options = ("-q", "-rf", "--tb=no", "-p", "no:cacheprovider", "-m", "not cluster")
            return int(pytest.main([*options, *tests]))

        code, output = self._fork(run)
        if code not in (0, 1) or " error" in output.splitlines()[-1]:
            raise ValueError(f"the tests could not be run: {output.strip().splitlines()[-1]}")
        return {match[1] for match in _RED.finditer(output)}

    def apply(self, edits: tuple[Edit, ...]) -> dict[Path, str]:
        """Apply the edits, and return the text of each changed file before them.

        Raises:
            ValueError: names the file in which a text does not occur exactly once.
        """
        before: dict[Path, str] = {}
        for edit in edits:
            path = self._root / edit.file
            text = path.read_text()
            before.setdefault(path, text)
            if text.count(edit.old) != 1:
                self.undo(before)
                raise ValueError(
                    f"{edit.file} no longer has this text exactly once: {edit.old.strip().splitlines()[0]}"
                )
            path.write_text(text.replace(edit.old, edit.new))
        return before

    @staticmethod
    def undo(before: dict[Path, str]) -> None:
        for path, text in before.items():
            path.write_text(text)

    def _fork(self, work: Callable[[], int]) -> tuple[int, str]:
        """Call `work` in a fork whose modules are those of the copy; return its exit code and its output."""
        with tempfile.TemporaryFile() as output:
            process = os.fork()
            if not process:
                code = 1
                try:
                    for stream in (1, 2):
                        os.dup2(output.fileno(), stream)
                    os.chdir(self._root)
                    sys.path[:0] = self._paths
                    os.environ["PYTHONPATH"] = os.pathsep.join(self._paths)
                    # Python takes stale bytecode for current when a file changes twice within a second and keeps its
                    # size.
                    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
                    sys.dont_write_bytecode = True
                    code = work()
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            _, status = os.waitpid(process, 0)
            output.seek(0)
            return os.waitstatus_to_exitcode(status), output.read().decode()


@cache
def _copy(directory: str) -> Copy:
    """This process's copy, in a directory of its own below `directory`."""
    copy = Copy(Path(tempfile.mkdtemp(dir=directory)).resolve())
    copy.check_imports()
    return copy


def failing_without_mutation(directory: str, tests: tuple[str, ...]) -> set[str]:
    """Those of `tests` that fail in an unchanged copy below `directory`."""
    return _copy(directory).failing(tests)


def verdict(directory: str, mutation: Mutation) -> list[str]:
    """What is wrong with a mutation's tests, run in a copy below `directory`; empty when each of them fails."""
    copy = _copy(directory)
    try:
        before = copy.apply(mutation.edits)
    except ValueError as error:
        return [str(error)]
    try:
        failing = copy.failing(mutation.tests)
    except ValueError as error:
        return [str(error)]
    finally:
        copy.undo(before)
    return [f"{test} passes" for test in mutation.tests if test not in failing]


def main(words: list[str]) -> int:
    selected = [mutation for mutation in MUTATIONS if not words or any(word in mutation.name for word in words)]
    if not selected:
        raise SystemExit(f"no mutation has {' or '.join(words)} in its name")
    os.environ["OMP_NUM_THREADS"] = "1"
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    cpus = len(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="tensafe-mutants-") as directory,
        ProcessPoolExecutor(cpus, multiprocessing.get_context("fork")) as processes,
    ):
        tests = tuple(dict.fromkeys(test for mutation in selected for test in mutation.tests))
        parts = [tests[part::cpus] for part in range(min(cpus, len(tests)))]
        if failing := set().union(*processes.map(partial(failing_without_mutation, directory), parts)):
            raise SystemExit("\n".join(["these tests fail without any mutation; fix them first:", *sorted(failing)]))
        survived = 0
        verdicts = processes.map(partial(verdict, directory), selected)
        for mutation, problems in zip(selected, verdicts, strict=True):
            survived += bool(problems)
            print(f"{'SURVIVED' if problems else 'killed':<9} {mutation.name}", flush=True)
            for problem in problems:
                print(f"          {problem}")
    print(f"{len(selected) - survived} of {len(selected)} mutations were noticed by each of their tests")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
