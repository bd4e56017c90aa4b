"""How many steps rank 0 charges at once, and what the other ranks receive from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensafe_api.resolve import Plan
from tensorguard.aggregation.channel import AggregationError
from tensorguard.ledger.file import FileLedger
from tensorguard.training import budget_gate
from tensorguard.training.budget_gate import Allowance, BudgetGate, Verdict
from tests.support.fakes.clock import Clock
from tests.support.trainer.rank_harness import Job, SingleRankChannel

Stop = Callable[[], bool]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(now=100.0)
    monkeypatch.setattr(budget_gate, "time", made)
    return made


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Of 2,000 steps, so 20 of them may be charged at once. The budget allows all."""
    made = Job.make(tmp_path / "job", "spec.cluster.workers=1", "spec.training.steps=2000").plan
    assert made.chunk_steps == 20
    return made


@pytest.fixture
def ledger(tmp_path: Path, plan: Plan) -> FileLedger:
    opened = FileLedger(tmp_path / "job")
    opened.acquire(attempt=1, from_step=0)
    return opened


def charged_steps(gate: BudgetGate, clock: Clock, steps: range, seconds: float) -> list[int]:
    """Run `steps`, each of `seconds`; the number of steps of each charge."""
    sizes = []
    for step in steps:
        before = gate.allowance.charged_through
        allowance = gate.ensure_charged(step, stop=False)
        assert allowance.verdict is Verdict.CONTINUE and step < allowance.charged_through
        if allowance.charged_through > before:
            sizes.append(allowance.charged_through - step)
        clock.now += seconds
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "sizes"), [(1.0, [1, 10, 10]), (0.25, [1, 20]), (3.0, [1, 3, 3, 3, 3, 3, 3, 2]), (60.0, [1] * 21)]
)
def test_charge_covers_ten_seconds_of_steps_and_a_hundredth_of_the_plan_at_most(
    seconds: float, sizes: list[int], plan: Plan, ledger: FileLedger, clock: Clock
) -> None:
    gate = BudgetGate(SingleRankChannel(), replace(plan, steps=21 if seconds == 3.0 else plan.steps), ledger, 0)
    assert charged_steps(gate, clock, range(21), seconds) == sizes
    assert gate.steps_charged == ledger.read().steps_charged == sum(sizes)


def test_first_charge_after_a_resume_is_of_one_step(plan: Plan, ledger: FileLedger, clock: Clock) -> None:
    clock.now = 1000.0
    gate = BudgetGate(SingleRankChannel(), plan, ledger, 50)
    assert gate.allowance == Allowance(Verdict.CONTINUE, 50, "0" * 64)
    assert charged_steps(gate, clock, range(50, 62), 1.0) == [1, 10, 10]


def test_last_charge_ends_with_the_plan(plan: Plan, ledger: FileLedger, clock: Clock) -> None:
    gate = BudgetGate(SingleRankChannel(), replace(plan, steps=8), ledger, 0)
    assert charged_steps(gate, clock, range(8), 1.0) == [1, 7]
    assert ledger.read().steps_charged == 8


def test_allowance_names_the_ledger_entry_of_its_charge(plan: Plan, ledger: FileLedger, clock: Clock) -> None:
    gate = BudgetGate(SingleRankChannel(), plan, ledger, 0)
    first = gate.ensure_charged(0, stop=False)
    assert (first.charged_through, first.head) == (1, ledger.read().head)
    clock.now += 1.0
    second = gate.ensure_charged(1, stop=False)
    assert (second.charged_through, second.head) == (11, ledger.read().head)
    assert gate.ensure_charged(10, stop=True) is second, "a step that is charged needs no decision"


def test_budget_is_checked_with_what_earlier_attempts_charged(plan: Plan, ledger: FileLedger, clock: Clock) -> None:
    ledger.charge(5)
    asked: list[tuple[int, int]] = []

    class Counted(Plan):
        def affordable_steps(self, charged: int, at_most: int) -> int:
            asked.append((charged, at_most))
            return min(at_most, 12 - charged)

    counted = Counted(**vars(plan))
    gate = BudgetGate(SingleRankChannel(), counted, ledger, 0)
    assert charged_steps(gate, clock, range(7), 1.0) == [1, 6]
    assert asked == [(5, 1), (6, 10)]
    end = gate.ensure_charged(7, stop=False)
    assert end == Allowance(Verdict.EXHAUSTED, 7, ledger.read().head)
    assert ledger.read().steps_charged == gate.steps_charged == 12


@pytest.mark.parametrize("asked_by", ["stop flag", "stop after the charged steps"])
def test_nothing_is_charged_after_a_request_to_stop(
    asked_by: str, plan: Plan, ledger: FileLedger, clock: Clock
) -> None:
    after_charged = [False]
    gate = BudgetGate(SingleRankChannel(), plan, ledger, 0, lambda: after_charged[0])
    gate.ensure_charged(0, stop=False)
    head = ledger.read().head
    after_charged[0] = asked_by == "stop after the charged steps"
    assert gate.ensure_charged(1, stop=not after_charged[0]) == Allowance(Verdict.STOP, 1, head)
    assert ledger.read().steps_charged == 1


class OtherRank:
    """The channel of rank 1. `sent` is what it sends; it receives the messages of rank 0 that were put in."""

    rank, size = 1, 2

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.sent = b""

    def all_gather(self, message: bytes) -> list[bytes]:
        self.sent = message
        return [self.received.pop(0), message]

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Relay(SingleRankChannel):
    """The channel of rank 0, which keeps its messages for rank 1."""

    def __init__(self, other: OtherRank) -> None:
        self.other = other

    def all_gather(self, message: bytes) -> list[bytes]:
        self.other.received.append(message)
        return [message, b"\0" * len(message)]


def test_other_ranks_receive_the_verdict_of_rank_0(plan: Plan, ledger: FileLedger, clock: Clock) -> None:
    other = OtherRank()
    holder = BudgetGate(Relay(other), plan, ledger, 0)
    follower = BudgetGate(other, plan, None, 0)
    for step, stop in ((0, False), (1, False), (11, False), (21, True)):
        allowance = holder.ensure_charged(step, stop)
        assert follower.ensure_charged(step, stop=False) == allowance
        assert len(other.sent) == 41, "all ranks send messages of one length"
        clock.now += 1.0 if step == 0 else 10.0
    assert follower.allowance.verdict is Verdict.STOP
    assert follower.steps_charged == 0


def test_step_that_rank_0_did_not_charge_is_refused(plan: Plan) -> None:
    other = OtherRank()
    any_gate: Any = BudgetGate(other, plan, None, 4)
    other.received.append(budget_gate._MESSAGE.pack(Verdict.CONTINUE, 5, bytes(32)))
    assert any_gate.ensure_charged(4, stop=False).charged_through == 5
    other.received.append(budget_gate._MESSAGE.pack(Verdict.CONTINUE, 5, bytes(32)))
    with pytest.raises(AggregationError, match="worker 0 started step 5, but only steps below 5 are charged"):
        any_gate.ensure_charged(5, stop=False)
