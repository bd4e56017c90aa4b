"""Limits hold for the time in which the machine had its CPUs: those of measures, and of waiting."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import patience as module
import pytest
from patience import Cpu, until
from stopwatch import Stopwatch


def test_what_the_kernel_tells_is_read(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 5000 40 5 6 70 8 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert Cpu.now(stat) == Cpu(worked=161, withheld=70)
    assert Cpu.now(tmp_path / "other") == Cpu(0, 0)


def test_the_share_is_of_the_work_and_not_of_the_time() -> None:
    before = Cpu(worked=1000, withheld=500)
    assert Cpu(1000, 500).share_since(before) == 1
    assert Cpu(1400, 500).share_since(before) == 1
    assert Cpu(1100, 800).share_since(before) == 0.25


def test_a_goal_that_was_missed_is_an_error_and_one_that_others_cpus_cost_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(withheld: int, **where: bool) -> Stopwatch:
        clock, cpus = iter([0.0, 20.0]), iter([Cpu(0, 0), Cpu(100, withheld)])
        monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(module.Cpu, "now", lambda: next(cpus))
        watch = Stopwatch(tmp_path / "times.jsonl", **where)
        with watch("something", goal=10):
            pass
        return watch

    with pytest.raises(AssertionError, match=r"something: 20\.0 s, more than 10"):
        measure(withheld=0)
    with pytest.raises(AssertionError, match=r"CPUs were there for 11\.1"):
        measure(withheld=80)
    assert measure(withheld=300).last == 5
    with pytest.raises(AssertionError, match="more than 10"):
        measure(withheld=300, here=False)
    assert [json.loads(line)["share"] for line in (tmp_path / "times.jsonl").open()] == [1.0, 0.56, 0.25, 1.0]


def test_who_waits_gives_up_after_so_long_with_the_cpus_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def looks(share: float) -> int:
        """How often it is looked, once a second of the clock, at what never happens."""
        clock, seen = itertools.count(), []
        monkeypatch.setattr(module.time, "sleep", lambda _: None)
        monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(module.Cpu, "share_since", lambda *_: share)
        with pytest.raises(AssertionError, match="it never came"):
            until(lambda: seen.append(1), 10, lambda: "it never came")
        return len(seen)

    assert until(lambda: "at once", 0) == "at once"
    assert (looks(share=1), looks(share=0.25)) == (10, 40)
