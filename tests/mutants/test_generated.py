"""The copy that mutmut works on, and the list of mutants that may survive."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest
from fastest_first import order
from generate import BESIDE, MUTATED, PACKAGES, TESTS, open_mutants, prepare
from survivors import Equivalent, Survivor, equivalents, reason_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import functools


class Square:
    def __init__(self, side):
        self.side = side

    @property
    def area(self):
        return self.side**2

    @classmethod
    def unit(cls):
        return cls(1)


@functools.lru_cache(
    maxsize=None,
)
def checked(side):
    if side < 0:
        raise ValueError(
            f"{side} is negative",
        )
    return Square(side)
"""


def test_decorators_are_called_after_the_function_in_the_copy() -> None:
    prepared = prepare(SOURCE)
    decorated = [node.name for node in ast.walk(ast.parse(prepared)) if getattr(node, "decorator_list", ())]
    assert decorated == ["unit"]
    names: dict[str, object] = {}
    exec(prepared, names)
    checked, square = names["checked"], names["Square"]
    assert checked(3) is checked(3)  # type: ignore[operator]
    assert checked(3).area == 9  # type: ignore[operator]
    assert isinstance(square.area, property)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="-1 is negative"):
        checked(-1)  # type: ignore[operator]


def test_all_mutants_of_a_changed_module_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generate.STAGE", tmp_path)
    source, mutated = tmp_path / "tensorguard/step.py", tmp_path / "mutants/tensorguard/step.py"
    for time, file in enumerate((source, mutated, mutated.with_suffix(".py.meta"))):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"exit_code_by_key": {"step.a": 1, "step.b": None}}))
        os.utime(file, (time, time))
    assert open_mutants(["step.py"]) == ["step.b"]
    os.utime(source, (1.5, 1.5))
    assert open_mutants(["step.py"]) == ["tensorguard.step.*"]


def test_errors_are_not_mutated() -> None:
    lines = [line.strip() for line in prepare(SOURCE).splitlines()]
    start, end = lines.index("# pragma: no mutate start"), lines.index("# pragma: no mutate end")
    assert lines[start + 1] == "raise ValueError("
    assert lines[end - 1] == ")"


def test_mutated_modules_and_their_tests_exist() -> None:
    for pattern in MUTATED:
        package, _, rest = pattern.partition("/")
        assert list(PACKAGES[package].glob(rest)), pattern
    assert all((ROOT / test).exists() for test in TESTS)


def test_copy_has_the_fixtures_of_every_test() -> None:
    needed = {parent / "conftest.py" for test in TESTS for parent in Path(test).parents}
    assert {str(path) for path in needed if (ROOT / path).exists()} <= set(BESIDE)


def functions_of(module: str) -> dict[str, str]:
    """The source of each function that mutmut mutates, by its name with its class."""
    package, _, rest = module.partition("/")
    text = (PACKAGES[package] / rest).read_text()
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        for each in inside:
            if isinstance(each, ast.FunctionDef):
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                found[owner + each.name] = ast.get_source_segment(text, each) or ""
    return found


@pytest.mark.parametrize("known", equivalents(), ids=lambda known: f"{known.module} {known.function} {known.after}")
def test_listed_survivor_fits_the_source(known: Equivalent) -> None:
    lines = [line.strip() for line in functions_of(known.module)[known.function].splitlines()]
    assert known.before != known.after
    assert all(line in lines for line in known.before.splitlines()), known.before
    assert known.reason.endswith(".")


def test_entries_of_the_list_differ() -> None:
    entries = [json.dumps([each.module, each.function, each.before, each.after]) for each in equivalents()]
    assert len(set(entries)) == len(entries)


def test_survivor_matches_only_its_own_entry() -> None:
    survivor = Survivor("x_f__mutmut_1", "a/b.py", "f", "survived", "return 1", "return 2")
    assert survivor.matches(Equivalent("a/b.py", "f", "return 1", "return 2", "It is the same."))
    assert not survivor.matches(Equivalent("a/b.py", "f", "return 1", "return 3", "It is the same."))
    assert not survivor.matches(Equivalent("a/b.py", "g", "return 1", "return 2", "It is the same."))


def test_fastest_tests_come_first_and_those_of_jobs_last() -> None:
    seconds = {
        "tests/training/test_a.py::one": 0.2,
        "tests/training/test_a.py::two": 0.1,
        "tests/training/test_b.py::one": 0.1,
        "tests/privacy/test_c.py::one": 2.0,
        "tests/privacy/test_d.py::one": 0.3,
    }
    names = [name.removeprefix("tests/") for name in order(seconds, 10.0)]
    assert names == [
        "privacy/test_d.py::one",
        "privacy/test_c.py::one",
        "training/test_b.py::one",
        "training/test_a.py::two",
        "training/test_a.py::one",
    ]
    assert [name.removeprefix("tests/") for name in order(seconds, 2.35)] == names[:2]


def test_slowest_test_runs_where_no_other_reaches_the_function() -> None:
    assert order({"tests/privacy/test_c.py::one": 20.0}, 10.0) == ["tests/privacy/test_c.py::one"]


@pytest.mark.parametrize(
    ("after", "explained"),
    [
        ("x = empty(3, dtype=uint8, device=None)", True),
        ("x = empty(3, dtype=uint8, )", True),
        ("x = empty(4, dtype=uint8, device=self._device)", False),
        ("x = empty(3, dtype=None, device=self._device)", False),
        ("x = None", False),
    ],
)
def test_mutant_that_leaves_out_a_device_may_survive(after: str, explained: bool) -> None:
    found = Survivor(
        "x_f__mutmut_1", "a/b.py", "f", "survived", "x = empty(3, dtype=uint8, device=self._device)", after
    )
    assert (reason_of(found, []) is not None) == explained
    for before, without in (
        ("f(batch, self._device)", "f(batch, None)"),
        ("device=self._device,", ""),
        ("self._device = device", "self._device = None"),
    ):
        assert reason_of(Survivor("x_f__mutmut_1", "a/b.py", "f", "survived", before, without), []) is not None
