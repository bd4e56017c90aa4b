"""An audit with the records of the job: it trains, charges the ledger, and writes no adapter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tensorguard.canary_audit.canaries import Scores
from tensorguard.canary_audit.ranks import SCORES, AuditSize, AuditWorker
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.training.worker import take_part
from tests.support.trainer.rank_harness import Job, SingleRankChannel

CPU = torch.device("cpu")


def audit(job: Job, canaries: int, steps: int) -> None:
    job.attempt += 1
    take_part(AuditWorker(job.config(), AuditSize(canaries, steps), SingleRankChannel(), CPU))


def make(directory: Path) -> Job:
    return Job.make(
        directory, "spec.cluster.workers=1", "spec.training.steps=7", "spec.checkpoint.everySteps=1", "spec.lora.rank=2"
    )


@pytest.mark.slow
def test_every_step_is_charged_and_no_checkpoint_is_written(tmp_path: Path) -> None:
    job = make(tmp_path / "run")
    audit(job, 200, 4)
    assert job.ended().reason == "Completed", job.ended().message
    assert job.ledger().steps_charged == 4
    assert job.ledger().checkpoints == ()
    assert not list((tmp_path / "run").rglob("*adapter*")) and not job.store().names()
    scores = Scores.load(job.directory / SCORES)
    assert (scores.steps, len(scores.scores)) == (4, 200)


@pytest.mark.slow
def test_records_and_canaries_are_both_in_the_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, included canaries stand out from the gradients of the records, which are in all coordinates."""
    monkeypatch.setattr(DiscreteGaussian, "draw", lambda _noise, count, _stream: np.zeros(count, dtype=np.int64))
    computed: list[int] = []
    compute = PerExampleGradients.compute

    def counting(gradients: PerExampleGradients, batch: object, rows: int, *more: object) -> torch.Tensor:
        computed.append(rows)
        return compute(gradients, batch, rows, *more)  # type: ignore[arg-type]

    job = make(tmp_path / "run")
    monkeypatch.setattr(PerExampleGradients, "compute", counting)
    audit(job, 100, 7)
    scores = Scores.load(job.directory / SCORES)
    assert sum(computed) > 7  # records joined the steps
    out, included = scores.scores[~scores.included], scores.scores[scores.included]
    assert np.abs(out).max() > 0  # records moved the coordinates
    assert included.mean() - out.mean() == pytest.approx(0.7, abs=0.45)  # 7 steps at q = 0.1


@pytest.mark.slow
def test_more_canaries_than_trained_parameters_end_the_audit_before_it_is_charged(tmp_path: Path) -> None:
    job = make(tmp_path / "run")
    audit(job, 10**6, 4)
    assert (job.ended().reason, job.ledger().steps_charged) == ("InvalidManifest", 0)
    assert "lower --canaries" in job.ended().message
    assert not (job.directory / SCORES).exists()


def test_audit_that_was_stopped_leaves_no_scores(tmp_path: Path) -> None:
    job = make(tmp_path / "run")
    (job.directory / "stop").touch()
    audit(job, 100, 4)
    assert job.ended().reason == "Interrupted"
    assert not (job.directory / SCORES).exists() and not job.store().names()
