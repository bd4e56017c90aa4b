"""The budget is a hard limit: no step is charged that would raise ε above the target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tensorguard.ledger.contract import LedgerCorrupt
from tensorguard.ledger.file import FileLedger
from tests.support.trainer.rank_harness import Job

Break = Callable[[int | None], None]
TOO_LITTLE_NOISE = (
    "spec.cluster.workers=1",
    "spec.training.steps=9",
    "spec.checkpoint.everySteps=4",
    "spec.privacy.noiseMultiplier=0.9",
    "spec.privacy.targetEpsilon=2.5",
    "spec.privacy.accountant=RDP",
)


def job(directory: Path, *overrides: str) -> Job:
    return Job.make(directory / "run", *TOO_LITTLE_NOISE, *overrides)


def affordable(job: Job) -> int:
    """The affordable steps, counted one by one, which the trainer does not do."""
    steps = 0
    while job.plan.epsilon(steps + 1) <= job.plan.target_epsilon:
        steps += 1
    return steps


@pytest.mark.slow
def test_stop_ends_with_the_last_affordable_step_as_a_final_checkpoint(tmp_path: Path) -> None:
    stopping = job(tmp_path)
    steps = affordable(stopping)
    assert 0 < steps < 9
    stopping.train_alone()
    assert stopping.ended().reason == "BudgetExhausted"
    assert f"step {steps + 1} of 9 would exceed spec.privacy.targetEpsilon (2.5)" in stopping.ended().message
    ledger, status = stopping.ledger(), stopping.status()
    assert ledger.outcome == "BudgetExhausted"
    assert ledger.steps_charged == steps
    assert (ledger.checkpoints[-1].step, ledger.checkpoints[-1].final) == (steps, True)
    assert stopping.store().exists("final")
    assert status.phase == "BudgetExhausted"
    assert float(status.privacy.epsilon_spent) <= 2.5


@pytest.mark.slow
def test_fail_ends_without_a_final_checkpoint(tmp_path: Path) -> None:
    failing = job(tmp_path, "spec.privacy.onBudgetExhausted=Fail")
    failing.train_alone()
    assert failing.ended().reason == "PrivacyBudgetExceeded"
    assert failing.ledger().steps_charged == affordable(failing)
    assert failing.status().phase == "Failed"
    assert failing.status().final_model is None
    assert not failing.store().exists("final")


@pytest.mark.slow
def test_steps_charged_before_a_crash_count_against_the_budget(tmp_path: Path, break_at: Break) -> None:
    """A step that is run again is charged again, so the run ends earlier."""
    crashed = job(tmp_path)
    steps = affordable(crashed)
    break_at(1)
    for restart in (False, True):
        with pytest.raises(RuntimeError):
            crashed.train_alone(restart=restart)
    break_at(None)
    assert crashed.ledger().steps_charged == 4
    crashed.train_alone()
    ledger = crashed.ledger()
    assert crashed.ended().reason == "BudgetExhausted"
    assert ledger.steps_charged == steps
    assert ledger.checkpoints[-1].step == steps - 4
    assert crashed.status().checkpoints[-1].epsilon == crashed.status().privacy.epsilon_spent


@pytest.mark.slow
def test_reserve_steps_cover_a_crash(tmp_path: Path, break_at: Break) -> None:
    """The noise is calibrated for steps + reserveSteps, so all planned steps are reached in spite of the crash."""
    overrides = ("spec.cluster.workers=1", "spec.training.steps=6", "spec.privacy.reserveSteps=3")
    reserved = Job.make(tmp_path / "run", *overrides, "spec.checkpoint.everySteps=2")
    break_at(3)
    with pytest.raises(RuntimeError):
        reserved.train_alone()
    break_at(None)
    reserved.train_alone()
    assert reserved.ended().reason == "Completed"
    assert reserved.ledger().steps_charged == 8
    assert float(reserved.status().privacy.epsilon_spent) <= reserved.plan.target_epsilon


@pytest.mark.slow
def test_step_is_not_revealed_when_its_charge_is_not_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileLedger, "charge", lambda ledger, steps: ledger.read())
    unpaid = job(tmp_path)
    with pytest.raises(LedgerCorrupt, match="lacks steps that were just charged"):
        unpaid.train_alone()
    assert unpaid.revealed() == [0]
