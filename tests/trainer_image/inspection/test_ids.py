"""Which ids look alike, and which do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tensorguard.data.values import id_of
from tensorguard.inspection import ids
from tensorguard.inspection.ids import IdCounts


def alike(found: Sequence[object], keep: bool = False) -> dict[str, int]:
    return {each.kind: each.ids for each in counted(found, keep).alike()}


def counted(found: Sequence[object], keep: bool = False) -> IdCounts:
    counts = IdCounts(keep)
    counts.add([id_of(each) for each in found])
    return counts


@pytest.mark.parametrize(
    ("found", "kind", "number"),
    [
        (["p-007", "P7", "p 7", "p8"], "Spelling", 3),
        (["Ann Lee", "ann-lee", "Bob"], "Spelling", 2),
        (["12-34", "12/34"], "Spelling", 2),
        (["Patient/3", 3, "Patient/4", 5], "Prefix", 1),
        (["urn:p:03", "3"], "Prefix", 1),
        ([123456000000, 123457000000, 5], "Rounded", 2),
        (["unknown", "NA", "7"], "Missing", 2),
        ([0, 1], "Missing", 1),
    ],
)
def test_ids_that_look_alike_are_counted(found: list[object], kind: str, number: int) -> None:
    assert alike(found) == {kind: number}


@pytest.mark.parametrize(
    "found",
    [
        [1, 2, 10, 100, 1000],
        ["1-23", "12-3"],
        ["a1", "b1", "a2"],
        ["a-1-2", "a-12"],
        [100000, *range(200000, 200500)],
        ["f0f", "ff0"],
        [7, "7", "007", 7.0],
    ],
)
def test_other_ids_do_not_look_alike(found: list[object]) -> None:
    assert alike(found) == {}


def test_records_of_missing_ids_are_counted() -> None:
    [missing] = counted(["unknown", "unknown", "NA", None, "x"]).alike()
    assert (missing.ids, missing.records) == (2, 3)


def test_ids_are_shown_only_on_request() -> None:
    found = ["p-7", "p7", "q1", "unknown"]
    assert all(each.examples is None for each in counted(found).alike())
    spelling, missing = counted(found, keep=True).alike()
    assert set(spelling.examples or ()) == {"p-7", "p7"}
    assert missing.examples == ("unknown",)


def test_ids_are_compared_over_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_COMPACT_ROWS", 10)
    counts = IdCounts()
    for start in range(0, 100, 7):
        counts.add([f"p-{i % 50:03d}" for i in range(start, start + 7)])
    counts.add(["p1"])
    assert counts.distinct() == 51
    assert {each.kind: each.ids for each in counts.alike()} == {"Spelling": 2}


def test_without_ids_nothing_looks_alike() -> None:
    assert counted([None, ""]).alike() == ()
