"""Limits hold for the time in which the machine had its CPUs: those of measures, and of waiting."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import e2e.platform.fixtures.polling as module
from e2e.platform.fixtures.polling import steal_seconds, wait_until
from e2e.platform.fixtures.stopwatch import Stopwatch


def test_what_the_kernel_tells_is_read(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  100 20 30 5000 40 5 6 370 8 9\ncpu0 1 2 3 4 5 6 7 300 9 10\ncpu1 1 2 3 4 5 6 7 70 9 10\nintr 1\n"
    )
    ticks = os.sysconf("SC_CLK_TCK")
    assert steal_seconds(stat) == [300 / ticks, 70 / ticks]
    assert steal_seconds(tmp_path / "other") == []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Of each second that is slept, this much is withheld on one CPU, and a tenth of it on the other."""

    def of(share: float) -> None:
        slept: list[float] = []
        monkeypatch.setattr(module.time, "sleep", lambda seconds: slept.append(max(1, seconds)))
        monkeypatch.setattr(module.time, "monotonic", lambda: sum(slept))
        monkeypatch.setattr(module, "steal_seconds", lambda: [sum(slept) * share / 10, sum(slept) * share])

    return of


def test_a_goal_that_was_missed_is_an_error_and_one_that_others_cpus_cost_is_not(
    machine: Callable[[float], None], tmp_path: Path
) -> None:
    def measure(withheld: float, **where: bool) -> Stopwatch:
        machine(withheld)
        watch = Stopwatch(tmp_path / "times.jsonl", **where)
        with watch("something", goal=10):
            module.time.sleep(20)
        return watch

    with pytest.raises(AssertionError, match=r"something: 20\.0 s, more than 10"):
        measure(withheld=0)
    with pytest.raises(AssertionError, match=r"CPUs were there for 12\.0"):
        measure(withheld=0.4)
    assert measure(withheld=0.75).last == 5
    with pytest.raises(AssertionError, match="more than 10"):
        measure(withheld=0.75, here=False)
    assert [json.loads(line)["given"] for line in (tmp_path / "times.jsonl").open()] == [20.0, 12.0, 5.0, 20.0]


def test_who_waits_gives_up_after_so_long_with_the_cpus_there(machine: Callable[[float], None]) -> None:
    def looks(withheld: float) -> int:
        """How often it is looked, once a second of the clock, at what never happens."""
        machine(withheld)
        seen: list[int] = []
        with pytest.raises(AssertionError, match="it never came"):
            wait_until(lambda: seen.append(1), 10, lambda: "it never came")
        return len(seen)

    assert wait_until(lambda: "at once", 0) == "at once"
    assert (looks(withheld=0), looks(withheld=0.75)) == (11, 41)
