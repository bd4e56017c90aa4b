"""The order within a step, and steps in which nobody joins: test 2 and 3 of the mechanism, on the whole engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.platform.trainer.fault_injection import KeepBatchSizes, KeepTotals, Kill
from e2e.platform.trainer.rank_harness import Job, join, records
from tensorguard.aggregation import reduce
from tensorguard.ledger.file import FileLedger

STEPS = 6


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job whose draws are mostly empty, killed after four of its steps and gone on with by a new incarnation."""
    job = Job.make(
        tmp_path_factory.mktemp("empty") / "run",
        f"spec.training.steps={STEPS}",
        "spec.training.expectedBatchSize=1",
        "spec.checkpoint.everySteps=3",
        "spec.dataset.unit.atLeast=4000",
        "spec.privacy.targetEpsilon=2",
        "spec.aggregation.colludingWorkers=1",
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
    """N/(N-t) sigma^2 S^2: each of two workers adds enough for the other to be a colluder."""
    mechanism = empty.plan.mechanism
    revealed = totals(empty)
    variance = 2 * (float(mechanism.noise_multiplier) * mechanism.grid) ** 2
    # A unit that joins adds at most S² to a step's sum of squares, against d times the variance.
    ratio = float((revealed**2).mean() / variance)
    assert abs(ratio - 1) < 7 * (2 / revealed.size) ** 0.5 + 3 / revealed.shape[1]


def test_noise_is_never_reused_even_after_a_restart(empty: Job) -> None:
    revealed = totals(empty)
    assert len(revealed) == 7
    correlations = np.corrcoef(revealed)
    np.fill_diagonal(correlations, 0.0)
    assert np.abs(correlations).max() < 7 / revealed.shape[1] ** 0.5


def test_charge_is_on_disk_before_its_step_is_revealed(alone: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    fsync, charge, reveal = os.fsync, FileLedger.charge, reduce.reveal

    def syncing(descriptor: int) -> None:
        fsync(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "ledger.jsonl":
            happened.append("on the disk")

    def charging(ledger: FileLedger, steps: int) -> Any:
        happened.append(f"charge {steps}")
        return charge(ledger, steps)

    def revealing(*arguments: Any) -> Any:
        happened.append("reveal")
        return reveal(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", syncing)
        patch.setattr(FileLedger, "charge", charging)
        patch.setattr(reduce, "reveal", revealing)
        alone.train_alone()
    charges = [number for number, what in enumerate(happened) if what.startswith("charge")]
    assert sum(int(happened[number].split()[1]) for number in charges) == happened.count("reveal") == 7
    paid = 0
    for number, what in enumerate(happened):
        if what.startswith("charge"):
            assert happened[number + 1] == "on the disk"
            paid += int(what.split()[1])
        elif what == "reveal":
            paid -= 1
            assert paid >= 0, happened
