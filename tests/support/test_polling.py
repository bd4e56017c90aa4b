"""Goals of measurements and timeouts of waits do not count steal time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.support.polling as module
from tests.support.polling import steal_seconds, wait_until
from tests.support.stopwatch import Stopwatch


def test_steal_time_is_read_from_proc_stat(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  100 20 30 5000 40 5 6 370 8 9\ncpu0 1 2 3 4 5 6 7 300 9 10\ncpu1 1 2 3 4 5 6 7 70 9 10\nintr 1\n"
    )
    ticks = os.sysconf("SC_CLK_TCK")
    assert steal_seconds(stat) == [300 / ticks, 70 / ticks]
    assert steal_seconds(tmp_path / "other") == []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets a share of each slept second that is steal time on one CPU; on the other it is a tenth of that."""

    def set_steal(share: float) -> None:
        slept: list[float] = []
        monkeypatch.setattr(module.time, "sleep", lambda seconds: slept.append(max(1, seconds)))
        monkeypatch.setattr(module.time, "monotonic", lambda: sum(slept))
        monkeypatch.setattr(module, "steal_seconds", lambda: [sum(slept) * share / 10, sum(slept) * share])

    return set_steal


def test_missed_goal_is_an_error_unless_steal_time_explains_it(
    machine: Callable[[float], None], tmp_path: Path
) -> None:
    def measure(steal: float, **where: bool) -> Stopwatch:
        machine(steal)
        watch = Stopwatch(tmp_path / "times.jsonl", **where)
        with watch("something", goal=10):
            module.time.sleep(20)
        return watch

    with pytest.raises(AssertionError, match=r"something: 20\.0 s, more than 10"):
        measure(steal=0)
    with pytest.raises(AssertionError, match=r"without steal time 12\.0"):
        measure(steal=0.4)
    assert measure(steal=0.75).last == 5
    with pytest.raises(AssertionError, match="more than 10"):
        measure(steal=0.75, here=False)
    assert [json.loads(line)["given"] for line in (tmp_path / "times.jsonl").open()] == [20.0, 12.0, 5.0, 20.0]


def test_wait_times_out_without_counting_steal_time(machine: Callable[[float], None]) -> None:
    def polls(steal: float) -> int:
        """Number of polls, one for each second, of a condition that never holds."""
        machine(steal)
        calls: list[int] = []
        with pytest.raises(AssertionError, match="it never held"):
            wait_until(lambda: calls.append(1), 10, lambda: "it never held")
        return len(calls)

    assert wait_until(lambda: "at once", 0) == "at once"
    assert (polls(steal=0), polls(steal=0.75)) == (11, 41)
