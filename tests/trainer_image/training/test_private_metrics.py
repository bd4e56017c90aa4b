"""Figures that are exact functions of private data: `Internal` keeps them for their owner, `Hidden` keeps none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensafe_operator.children.volumes import RUN_PATH
from tensorguard.aggregation.protocol import SecureAggregator
from tensorguard.data.batches import MicroBatch
from tensorguard.ledger.file import FileLedger
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.stream import KeyedSeeds
from tensorguard.runners.pod.pod_files import PodFiles
from tensorguard.training.config import PRIVATE_METRICS, RUN_LOG
from tensorguard.training.private_metrics import PrivateMetrics, PrivateMetricsReader
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients
from tests.support.trainer.rank_harness import Job

SHORT = ("spec.cluster.workers=1", "spec.training.steps=3", "spec.checkpoint.everySteps=2")
INTERNAL = "spec.observability.privateMetrics=Internal"
Write = Callable[..., None]


def lines(job: Job) -> list[dict[str, Any]]:
    (path,) = job.private.path.glob("private-*")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_internal_writes_each_step_to_a_file_of_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.make(tmp_path / "run", *SHORT, INTERNAL)
    records: list[int] = []
    losses: list[float] = []
    compute, add_to = ShardGradients._compute, ShardGradients.add_to

    def computing(self: ShardGradients, batch: MicroBatch, dropout: KeyedSeeds) -> torch.Tensor:
        rows = compute(self, batch, dropout)
        records[-1] += len(batch.units)
        losses[-1] += sum((self._losses or [])[-len(batch.units) :])
        return rows

    def adding(self: ShardGradients, clipper: GridClipper, units: list[int], stop: StopSignal) -> bool:
        records.append(0)
        losses.append(0.0)
        return add_to(self, clipper, units, stop)

    monkeypatch.setattr(ShardGradients, "_compute", computing)
    monkeypatch.setattr(ShardGradients, "add_to", adding)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    (path,) = job.private.path.glob("private-*")
    assert not list(job.directory.glob("private-*"))
    assert path.stat().st_mode & 0o077 == 0
    written = lines(job)
    assert [each["step"] for each in written] == [1, 2, 3]
    assert [each["units"] for each in written] == [each["records"] for each in written] == records
    for each, loss, count in zip(written, losses, records):
        assert each["trainingLoss"] == pytest.approx(loss / count, abs=1e-6) and loss > 0
        assert each["meanNorm"] > 0 and 0 <= each["clippedFraction"] <= 1
    assert json.loads(job.store().read("final")["statement.json"])["privateMetrics"] == "Internal"
    public = ((job.directory / RUN_LOG).read_text() + job.status().model_dump_json()).lower()
    assert not any(word in public for word in ("loss", "norm", "units", "records"))


def test_hidden_keeps_no_loss_and_no_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    kept: list[float] = []
    seen: list[list[float] | None] = []
    compute, add_to = PerExampleGradients.compute, ShardGradients.add_to

    def computing(
        self: PerExampleGradients, batch: Any, rows: int, losses_into: list[float] | None = None
    ) -> torch.Tensor:
        seen.append(losses_into)
        return compute(self, batch, rows, losses_into)

    def adding(self: ShardGradients, clipper: GridClipper, units: list[int], stop: StopSignal) -> bool:
        complete = add_to(self, clipper, units, stop)
        kept.extend([*self.take_losses(), *clipper.take_norms()])
        return complete

    monkeypatch.setattr(PerExampleGradients, "compute", computing)
    monkeypatch.setattr(ShardGradients, "add_to", adding)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    assert not list(job.private.path.glob("private-*"))
    assert kept == [] and set(seen) == {None}


def test_line_of_a_step_is_written_after_its_charge_and_before_its_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a line exists for charged steps only, and a worker that has the sum knows that all workers have written."""
    job = Job.make(tmp_path / "run", *SHORT, INTERNAL)
    order: list[tuple[str, int]] = []
    charge, summed = FileLedger.charge, SecureAggregator.sum

    def charging(self: FileLedger, steps: int) -> Any:
        order.append(("charge", len(lines(job))))
        return charge(self, steps)

    def summing(self: SecureAggregator, *values: Any, **named: Any) -> Any:
        order.append(("sum", len(lines(job))))
        return summed(self, *values, **named)

    monkeypatch.setattr(FileLedger, "charge", charging)
    monkeypatch.setattr(SecureAggregator, "sum", summing)
    job.train_alone()
    assert order == [("charge", 0), ("sum", 1), ("charge", 1), ("sum", 2), ("charge", 2), ("sum", 3)]


def test_place_in_a_pod_is_the_one_that_the_reference_states() -> None:
    assert str(PodFiles().run / PRIVATE_METRICS.format(rank="N")) == f"{RUN_PATH}/private-metrics-rankN.jsonl"
    text = (Path(__file__).parents[3] / "docs/reference/tensafetrainingjob.md").read_text()
    [row] = [line for line in text.splitlines() if line.startswith("| `privateMetrics`")]
    assert PRIVATE_METRICS.format(rank="N") in row and RUN_PATH in row and "lost with the pod" in row


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Appends a line to the file of a rank."""

    def append(rank: int, step: int, *, end: str = "\n", **figures: float | None) -> None:
        line = {"step": step, "units": 0, "records": 0, "trainingLoss": None, "clippedFraction": None, "meanNorm": None}
        with (tmp_path / PRIVATE_METRICS.format(rank=rank)).open("a") as file:
            file.write(json.dumps(line | figures) + end)

    return append


def test_figures_of_the_workers_are_combined(tmp_path: Path, write: Write) -> None:
    write(0, 1, units=50)  # of an earlier call
    reader = PrivateMetricsReader(tmp_path, 3)
    write(0, 1, units=1, records=3, trainingLoss=2.0, clippedFraction=1.0, meanNorm=4.0)
    write(1, 1, units=3, records=9, trainingLoss=1.0, clippedFraction=0.0, meanNorm=2.0)
    write(2, 1)
    write(0, 2)
    figures = {"units": 4, "records": 12, "loss": 1.25, "clipped_fraction": 0.25, "mean_norm": 2.5}
    assert reader.at(1) == figures


def test_step_that_runs_again_is_read_again(tmp_path: Path, write: Write) -> None:
    reader = PrivateMetricsReader(tmp_path, 1)
    write(0, 1, units=1)
    write(0, 2, units=2)
    assert [reader.at(1)["units"], reader.at(2)["units"]] == [1, 2]
    assert reader.at(2)["units"] == 2  # asked by a second callback
    write(0, 2, units=5, end="")  # cut by a kill, so that the next line cannot be read either
    write(0, 2, units=7)
    write(0, 2, units=9)
    assert reader.at(2)["units"] == 9


def test_figure_of_nothing_is_nan(tmp_path: Path, write: Write) -> None:
    reader = PrivateMetricsReader(tmp_path, 2)
    write(0, 1)
    write(1, 1)
    empty = reader.at(1)
    assert empty["units"] == empty["records"] == 0
    assert all(math.isnan(empty[name]) for name in ("loss", "clipped_fraction", "mean_norm"))
    write(0, 2, units=1, records=1, trainingLoss=1.0)
    assert all(math.isnan(value) for value in reader.at(2).values())  # the other worker's line is missing
    write(1, 3, units=1, records=1, trainingLoss=None)  # a loss that overflowed
    write(0, 3, units=1, records=1, trainingLoss=1.0)
    assert math.isnan(reader.at(3)["loss"])


def test_lines_of_an_earlier_call_are_not_read(tmp_path: Path, write: Write) -> None:
    write(0, 7, units=50)
    reader = PrivateMetricsReader(tmp_path, 1)
    assert math.isnan(reader.at(7)["units"])


def test_mean_of_one_unit_is_its_figure(tmp_path: Path, write: Write) -> None:
    reader = PrivateMetricsReader(tmp_path, 1)
    write(0, 1, units=1, records=1, trainingLoss=2.5, clippedFraction=1.0, meanNorm=3.0)
    assert reader.at(1) == {"units": 1, "records": 1, "loss": 2.5, "clipped_fraction": 1.0, "mean_norm": 3.0}


def recorded(tmp_path: Path, norms: list[float], losses: list[float]) -> dict[str, Any]:
    clipper: Any = SimpleNamespace(clip=1.0, take_norms=lambda: norms)
    metrics = PrivateMetrics(tmp_path, 3)
    metrics.record_step(5, clipper, losses)
    metrics.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        metrics.record_step(6, clipper, losses)
    (line,) = (tmp_path / "private-metrics-rank3.jsonl").read_text().splitlines()
    return dict(json.loads(line))


def test_means_have_six_digits_and_a_norm_of_the_clip_norm_is_not_clipped(tmp_path: Path) -> None:
    assert recorded(tmp_path, [1.0, 1.5, 0.1], [2.0, 1.0, 1.0, 0.0, 0.0, 0.0]) == {
        "step": 5,
        "units": 3,
        "records": 6,
        "trainingLoss": 0.666667,
        "clippedFraction": 0.333333,
        "meanNorm": 0.866667,
    }


def test_step_without_records_and_a_loss_that_overflowed_have_no_mean(tmp_path: Path) -> None:
    assert recorded(tmp_path, [], [math.inf]) == {
        "step": 5,
        "units": 0,
        "records": 1,
        "trainingLoss": None,
        "clippedFraction": None,
        "meanNorm": None,
    }
