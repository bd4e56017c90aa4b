"""The runner of the mutants reports what survives and what no longer fits the source."""

from __future__ import annotations

from pathlib import Path

import pytest
import run
from mutants import Mutant

SOURCE = "def double(x):\n    return 2 * x\n"
TEST = "from doubles import double\n\n\ndef test_double():\n    assert double(3) == 6\n"


def copy_tree(target: Path) -> None:
    (target / "crds").mkdir(parents=True)
    (target / "crds/doubles.py").write_text(SOURCE)
    (target / "test_doubles.py").write_text(TEST)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("old", "new", "tests", "problem"),
    [
        ("2 * x", "3 * x", "test_doubles.py", None),
        ("2 * x", "x * 2", "test_doubles.py", "no test has failed"),
        ("2 * x", "2 *", "test_doubles.py", "no test has failed"),
        ("4 * x", "3 * x", "test_doubles.py", "does not have this exactly once"),
        ("2 * x", "3 * x", "test_doubles.py -k triple", "do not pass without the change"),
    ],
    ids=["killed", "survives", "no Python", "does not apply", "no test"],
)
def test_exit_code_is_1_unless_a_test_fails(
    old: str,
    new: str,
    tests: str,
    problem: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run, "LIBRARIES", ())
    monkeypatch.setattr(run, "copy_tree", copy_tree)
    monkeypatch.setattr(run, "MUTANTS", [Mutant("sums", "it triples", "crds/doubles.py", old, new, tests)])
    assert run.main([]) == (problem is not None)
    printed = capsys.readouterr().out
    assert printed.startswith("SURVIVED" if problem else "killed")
    assert (problem or "1 of 1 mutants were killed") in printed
