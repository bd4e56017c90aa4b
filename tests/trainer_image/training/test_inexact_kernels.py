"""A kernel that rounds by slot costs speed, never privacy: no rank and no attempt trains with gradients that differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorguard.privacy.gradients import Batch, PerExampleGradients
from tensorguard.training.run_log import Preparing
from tests.support.trainer.fault_injection import InexactKernel
from tests.support.trainer.rank_harness import Job

SHORT = ("spec.training.steps=2", "spec.checkpoint.everySteps=2", "spec.training.microBatchSize=4")
exact_compute = PerExampleGradients.compute


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "error", "message"),
    [
        (1, 1e-6, "computed again, even alone"),
        pytest.param(0, 1e-6, "computed again, even alone", marks=pytest.mark.slow),
        pytest.param(1, 0.04, "couples the records", marks=pytest.mark.slow),
    ],
)
def test_inexact_kernel_on_one_rank_ends_the_attempt_on_all(
    tmp_path: Path, rank: int, error: float, message: str
) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    assert job.run(InexactKernel(rank, error)) == [0, 0], job.errors()
    assert job.ended().reason == "ModelUnsupported"
    assert message in job.ended().message
    assert job.ledger().attempt == 0
    assert job.revealed() == [0, 0]


@pytest.mark.slow
def test_later_attempt_on_a_machine_with_an_inexact_kernel_charges_nothing(
    halted: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged = halted.ledger().steps_charged
    with monkeypatch.context() as patch:
        patch.setattr(PerExampleGradients, "compute", lambda *args: exact_compute(*args).mul_(1 + 5e-5 * torch.rand(1)))
        halted.train_alone()
    assert halted.ended().reason == "ModelUnsupported"
    assert halted.ledger().steps_charged == charged
    assert halted.ledger().attempt == 1


@pytest.mark.slow
def test_kernel_that_rounds_by_slot_trains_one_record_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def rounding(gradients: PerExampleGradients, batch: Batch, rows: int, _losses: None = None) -> torch.Tensor:
        sizes.append(len(batch["labels"]))
        return exact_compute(gradients, batch, rows).mul_(1 + 2e-7 * torch.arange(rows).unsqueeze(1))

    monkeypatch.setattr(PerExampleGradients, "compute", rounding)
    job = Job.make(tmp_path / "run", "spec.cluster.workers=1", *SHORT)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    assert sizes[0] == 4
    assert sizes[-20:] == 20 * [1], "more calls than the tests of 4 and of 2 records make"
    (record,) = (record for record in job.records() if isinstance(record, Preparing))
    assert record.what.startswith("Computing 1 instead of 4 records at once")
