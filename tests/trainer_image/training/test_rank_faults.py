"""A fault on one of two ranks: no rank hangs, no uncharged step is revealed, and a sentence names the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorguard.training.run_log import Stepped
from tests.support.trainer.fault_injection import OtherGrid, OtherKey, RaiseError, StopDuring
from tests.support.trainer.rank_harness import Job, join

SHORT = ("spec.training.steps=5", "spec.checkpoint.everySteps=2")


@pytest.mark.slow
def test_unreadable_shard_of_one_rank_ends_the_attempt_on_all_ranks(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    job.shards[1].write_bytes(b"no Arrow file")
    assert job.run() == [0, 0], job.errors()
    assert job.ended().reason == "InternalError"
    assert job.ended().message.endswith("(worker 1)")
    assert "\n" not in job.ended().message
    assert job.ledger().attempt == 0
    assert job.revealed() == [0, 0]


@pytest.mark.slow
def test_ranks_with_different_grids_reveal_nothing(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    assert job.run(OtherGrid(rank=1)) == [1, 1]
    assert "differs on grid bits" in job.errors()
    assert job.revealed() == [0, 0]
    assert job.ledger().steps_charged == 1  # charged, not revealed


@pytest.mark.slow
def test_rank_with_another_job_key_is_rejected(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    assert job.run(OtherKey(rank=1)) == [1, 1]
    assert "did not prove that it belongs to this attempt" in job.errors()
    assert job.revealed() == [0, 0]
    assert job.ledger().steps_charged == 0


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_exception_on_one_rank_ends_both_and_a_restart_resumes(tmp_path: Path, rank: int) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    codes = job.run(RaiseError("gradients", rank=rank, nth=4))
    assert all(codes), (codes, job.errors())
    assert "raised by the test" in job.errors()
    assert join(job.restart()) == [0, 0], job.errors()
    assert job.ended().reason == "Completed"
    assert job.ledger().incarnation == 2
    assert job.revealed() == [6, 6]  # the third step twice


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "charged"), [(0, 2), (1, 3)])
def test_stop_during_gradients_reveals_nothing_of_that_step(tmp_path: Path, rank: int, charged: int) -> None:
    """If rank 0 sees the flag, it charges no further step. If only rank 1 does, the step is charged, not revealed."""
    job = Job.make(tmp_path / "run", "spec.training.steps=5", "spec.checkpoint.everySteps=4")
    assert job.run(StopDuring(nth=3, rank=rank, seen_by_all=rank == 0)) == [0, 0], job.errors()
    assert job.ended().reason == "Interrupted"
    assert "after step 2 of 5" in job.ended().message
    assert job.revealed() == [2, 2]
    assert job.ledger().steps_charged == charged
    assert job.ledger().outcome == "Suspended"
    assert [each.step for each in job.ledger().checkpoints] == [2]
    assert job.status().phase == "Suspended"
    assert float(job.status().privacy.epsilon_claimed) > float(job.status().privacy.epsilon_spent)

    assert job.run() == [0, 0], job.errors()
    assert job.ended().reason == "Completed"
    assert [record.step for record in job.records() if isinstance(record, Stepped)] == [1, 2, 3, 4, 5]
    assert job.revealed() == [5, 5]
