"""`make mutants`: shows that the privacy tests can fail.

Each mutant of `mutants.py` changes one text in a copy of the source tree, and one of its tests must fail there. The
exit code is 1 if none fails, if the tests fail without the change, or if the text is no longer in the source.

    python tests/mutants/run.py [WORDS...]     only the mutants with one of these words in their sentence

Each run of pytest is a fork of this process, which has imported the libraries that the tests need, but no module of the
project: the libraries take ten seconds, most tests less than one.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("dp_accounting.pld", "dp_accounting.rdp", "hypothesis", "mpmath", "opacus", "peft", "pyarrow", "pydantic")
LIBRARIES += ("s3fs", "scipy.stats", "torch", "transformers")
OPTIONS = ("-x", "-q", "--tb=line", "--timeout=120", "-p", "no:cacheprovider", "-m", "not cluster")


def copy_tree(target: Path) -> None:
    """Copy the files of the project that git does not ignore to `target`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def _run_pytest(tree: Path, tests: str, output: Path) -> None:
    """In a fork: run `tests` with the packages of `tree`, which come before the installed ones."""
    sys.stdout = sys.stderr = stream = output.open("w")
    os.dup2(stream.fileno(), 1)
    os.dup2(stream.fileno(), 2)
    os.chdir(tree)
    sys.path[:0] = packages = [str(tree / each) for each in ("crds", "operator", "trainer_image")]
    # Bytecode looks current if a file changes twice within a second and keeps its size.
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=os.pathsep.join(packages), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    code = pytest.main([*OPTIONS, *shlex.split(tests)])
    stream.flush()
    os._exit(code)  # the threads of the parent, for which an exit would wait, are not in this process


def run_tests(tree: Path, tests: str) -> tuple[int | None, str]:
    """Return pytest's exit code (1: a test has failed) and the last line that it prints."""
    output = tree / "pytest.log"
    process = multiprocessing.get_context("fork").Process(target=_run_pytest, args=(tree, tests, output))
    process.start()
    process.join()
    return process.exitcode, (output.read_text().strip().splitlines() or ["no output"])[-1]


def problem_of(tree: Path, mutant: Mutant) -> str | None:
    """What is wrong with the tests of a mutant; None if they pass in `tree`, and one fails under the change."""
    file = tree / mutant.file
    source = file.read_text() if file.exists() else ""
    if source.count(mutant.old) != 1:
        return f"{mutant.file} does not have this exactly once: {mutant.old}"
    code, last = run_tests(tree, mutant.tests)
    if code != 0:
        return f"the tests do not pass without the change: {last}"
    file.write_text(source.replace(mutant.old, mutant.new))
    try:
        code, last = run_tests(tree, mutant.tests)
    finally:
        file.write_text(source)
    return None if code == 1 and " failed" in last else f"no test has failed: {last}"


def main(words: list[str]) -> int:
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    selected = [each for each in MUTANTS if not words or any(word in each.mistake for word in words)]
    cpus, survived = len(os.sched_getaffinity(0)), 0
    trees: SimpleQueue[Path] = SimpleQueue()

    def attempt(mutant: Mutant) -> tuple[str | None, float]:
        tree, start = trees.get(), time.monotonic()
        try:
            return problem_of(tree, mutant), time.monotonic() - start
        finally:
            trees.put(tree)

    with tempfile.TemporaryDirectory(prefix="tensafe-mutants-") as folder, ThreadPoolExecutor(cpus) as threads:
        for number in range(cpus):
            copy_tree(tree := Path(folder).resolve() / str(number))
            trees.put(tree)
        for mutant, (problem, seconds) in zip(selected, threads.map(attempt, selected)):
            survived += problem is not None
            verdict = "SURVIVED" if problem else "killed"
            print(f"{verdict:<9}{seconds:5.1f} s  {mutant.subject}: {mutant.mistake}", flush=True)
            if problem:
                print(f"{'':18}{problem}", flush=True)
    print(f"{len(selected) - survived} of {len(selected)} mutants were killed")
    return 1 if survived or not selected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
