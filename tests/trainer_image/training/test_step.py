"""The order within a step, and steps in which no unit joins (tests 2 and 3 of the mechanism), on the whole trainer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorguard.aggregation import reduce
from tensorguard.ledger.file import FileLedger
from tests.support.trainer.fault_injection import Kill
from tests.support.trainer.rank_harness import Job, join, records
from tests.support.trainer.recordings import KeepBatchSizes, KeepTotals

STEPS = 6
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job whose draws are mostly empty. It is killed after four steps, and a new incarnation resumes it."""
    job = Job.make(
        tmp_path_factory.mktemp("empty") / "run",
        f"spec.training.steps={STEPS}",
        "spec.training.expectedBatchSize=1",
        "spec.checkpoint.everySteps=3",
        "spec.dataset.unit.atLeast=4000",
        "spec.privacy.targetEpsilon=2",
        rows=records(40),
    )
    instruments = (KeepTotals(), KeepBatchSizes())
    first = join(job.start(Kill("apply", "after", rank=1, nth=4), *instruments))
    assert first[1] == -9, job.errors()
    assert join(job.restart(*instruments)) == [0, 0], job.errors()
    return job


def totals(job: Job) -> np.ndarray:
    paths = sorted((job.directory / "totals").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return np.stack([reduce.to_signed(np.load(path)) for path in paths]).astype(np.float64)


def test_ranks_run_the_same_number_of_steps_even_with_empty_draws(empty: Job) -> None:
    draws = [[int(line) for line in (empty.directory / f"draws-{rank}").read_text().split()] for rank in range(2)]
    assert all(sum(draw) < 5 for draw in draws)
    assert [draw.count(0) > STEPS // 2 for draw in draws] == [True, True]
    assert empty.revealed() == [4 + 3, 4 + 3]  # the fourth step twice
    assert empty.ledger().steps_charged >= 7


def test_sum_of_an_empty_step_is_noise_with_the_full_variance(empty: Job) -> None:
    """σ² S²: the shares of both workers together."""
    mechanism = empty.plan.mechanism
    revealed = totals(empty)
    variance = (float(mechanism.noise_multiplier) * mechanism.grid) ** 2
    # A unit that joins adds at most S² to the sum of squares of a step; the noise adds d times the variance.
    ratio = float((revealed**2).mean() / variance)
    assert abs(ratio - 1) < 7 * (2 / revealed.size) ** 0.5 + 3 / revealed.shape[1]


def test_noise_is_never_reused_even_after_a_restart(empty: Job) -> None:
    revealed = totals(empty)
    assert len(revealed) == 7
    correlations = np.corrcoef(revealed)
    np.fill_diagonal(correlations, 0.0)
    assert np.abs(correlations).max() < 7 / revealed.shape[1] ** 0.5


def test_charge_is_on_disk_before_its_step_is_revealed(alone: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, charge, reveal = os.fsync, FileLedger.charge, reduce.reveal

    def logging_fsync(descriptor: int) -> None:
        fsync(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "ledger.jsonl":
            calls.append("fsync")

    def logging_charge(ledger: FileLedger, steps: int) -> Any:
        calls.append(f"charge {steps}")
        return charge(ledger, steps)

    def logging_reveal(*arguments: Any) -> Any:
        calls.append("reveal")
        return reveal(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", logging_fsync)
        patch.setattr(FileLedger, "charge", logging_charge)
        patch.setattr(reduce, "reveal", logging_reveal)
        alone.train_alone()
    charges = [number for number, call in enumerate(calls) if call.startswith("charge")]
    assert sum(int(calls[number].split()[1]) for number in charges) == calls.count("reveal") == 7
    unused = 0
    for number, call in enumerate(calls):
        if call.startswith("charge"):
            assert calls[number + 1] == "fsync"
            unused += int(call.split()[1])
        elif call == "reveal":
            unused -= 1
            assert unused >= 0, calls
