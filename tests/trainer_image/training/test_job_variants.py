"""Every kind of training that the manifest offers runs from the first step to an adapter that peft loads."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from tensorguard.data.batches import MicroBatch
from tensorguard.data.shard import Shard
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.stream import KeyedSeeds
from tensorguard.training.config import RUN_LOG
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients
from tensorguard.training.worker import Worker, train
from tests.support.trainer.entity_f1 import entity_f1
from tests.support.trainer.rank_harness import CAUSAL, TAGS, Job, SingleRankChannel, completions, records, tagged
from tests.support.trainer.recordings import KeepWeights

SHORT = ("spec.cluster.workers=1", "spec.training.steps=3", "spec.checkpoint.everySteps=2")


def weights(job: Job) -> dict[str, torch.Tensor]:
    return load(job.store().read("final")["adapter_model.safetensors"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("spec.training.precision=bf16",), id="bf16"),
        pytest.param(("spec.training.precision=fp16", "spec.training.lossScale=1024"), id="fp16"),
        pytest.param(("spec.training.gradientCheckpointing=true", "spec.lora.dropout=0.2"), id="checkpointing"),
        pytest.param(("spec.training.microBatchSize=1",), id="one-record-at-a-time"),
        pytest.param(("spec.aggregation.verify=Strict", "spec.training.schedule=Cosine"), id="strict"),
        pytest.param(("spec.model.quantization=NF4", "spec.training.gradientCheckpointing=true"), id="four-bits"),
        pytest.param(("spec.model.quantization=INT8", "spec.training.precision=bf16"), id="eight-bits"),
        pytest.param(("spec.lora.layers=[1]", "spec.lora.rank=4"), id="one-layer"),
    ],
)
def test_sequence_classification_trains(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    job = Job.make(tmp_path / "run", *SHORT, *overrides)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    saved = weights(job)
    assert all(tensor.dtype == torch.float32 and torch.isfinite(tensor).all() for tensor in saved.values())
    assert any(tensor.any() for key, tensor in saved.items() if "lora_B" in key)
    base = AutoModelForSequenceClassification.from_pretrained(job.directory / "model", num_labels=2)
    PeftModel.from_pretrained(base, job.directory / "checkpoints" / "final")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_causal_lm_trains(tmp_path: Path, precision: str) -> None:
    job = Job.make(tmp_path / "run", *SHORT, f"spec.training.precision={precision}", kind=CAUSAL)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    assert any(tensor.any() for key, tensor in weights(job).items() if "lora_B" in key)
    base = AutoModelForCausalLM.from_pretrained(job.directory / "model")
    PeftModel.from_pretrained(base, job.directory / "checkpoints" / "final")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_token_classification_trains(tmp_path: Path, precision: str) -> None:
    job = Job.make(tmp_path / "run", *SHORT, f"spec.training.precision={precision}", kind=TAGS)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    saved = weights(job)
    assert any(tensor.any() for key, tensor in saved.items() if "lora_B" in key)
    assert saved["base_model.model.classifier.weight"].shape == (3, 32)
    base = AutoModelForTokenClassification.from_pretrained(job.directory / "model", num_labels=3)
    PeftModel.from_pretrained(base, job.directory / "checkpoints" / "final")


@pytest.mark.slow
def test_two_workers_publish_the_entity_f1_of_all_records(tmp_path: Path) -> None:
    job = Job.make(
        tmp_path / "run",
        "spec.evaluation={uri: other.jsonl, visibility: Public, everySteps: 36}",
        "spec.training.expectedBatchSize=200",
        "spec.training.learningRate=5e-2",
        "spec.training.steps=36",
        "spec.privacy.targetEpsilon=1000",
        kind=TAGS,
    )
    assert job.run(KeepWeights()) == [0, 0], job.errors()
    assert job.ended().reason == "Completed", job.ended().message
    assert len({(job.directory / f"weights-{rank}").read_text() for rank in range(2)}) == 1
    base = AutoModelForTokenClassification.from_pretrained(job.directory / "model", num_labels=3)
    model = PeftModel.from_pretrained(base, job.directory / "checkpoints" / "final").eval()
    names, shard = job.job.spec.model.label_names, Shard.open(job.shards[0])
    expected, predicted = [], []
    for record in range(len(shard)):
        labels = np.asarray(shard.labels(record))
        with torch.no_grad():
            classes = model(torch.tensor(shard.tokens(record).tolist())[None]).logits[0].argmax(dim=-1).numpy()
        expected.append([names[label] for label in labels[labels >= 0]])
        predicted.append([names[number] for number in classes[labels >= 0]])
    (result,) = job.status().evaluations
    assert result.metrics() == {"f1": f"{entity_f1(expected, predicted):.4f}"}
    assert 0.3 < float(result.f1) < 1


@pytest.mark.slow
@pytest.mark.parametrize("names", ["abc", ""])
def test_tags_in_another_scheme_have_no_f1(tmp_path: Path, names: str) -> None:
    evaluation = "spec.evaluation={uri: other.jsonl, visibility: Public, everySteps: 3}"
    scheme = f"spec.model.labelNames=[{', '.join(names)}]"
    tags = names or range(3)
    rows = [{"tokens": row["tokens"], "tags": [tags[len(tag) % 3] for tag in row["tags"]]} for row in tagged(240)]
    job = Job.make(tmp_path / "run", *SHORT, evaluation, scheme, rows=rows, kind=TAGS)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    (result,) = job.status().evaluations
    assert result.metrics() == {} and float(result.loss) > 0


def users(rows: list[dict[str, object]], each: int) -> list[dict[str, object]]:
    return [{**row, "user": f"user-{number // each}"} for number, row in enumerate(rows)]


@pytest.mark.slow
def test_user_joins_with_all_records_across_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five records per user, at most four used, three rows per micro-batch: users continue across micro-batches."""
    unit = "{kind: User, column: user, atLeast: 20, maxExamplesPerUnit: 4}"
    batch = ("spec.training.expectedBatchSize=5", "spec.training.microBatchSize=3")
    job = Job.make(
        tmp_path / "run",
        *SHORT,
        f"spec.dataset.unit={unit}",
        *batch,
        "spec.privacy.targetEpsilon=50",
        rows=users(records(100), 5),
    )
    shard = Shard.open(job.shards[0])
    assert Counter(len(shard.records(unit)) for unit in range(len(shard))) == {4: 20}
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    statement = json.loads(job.store().read("final")["statement.json"])
    assert statement["claim"]["unit"] == job.status().privacy.unit == "User"


@pytest.mark.slow
def test_users_are_sampled_not_their_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With q = 0.1 a user with four records joins one step in ten. If records were drawn, it would be one in three."""
    job = Job.make(
        tmp_path / "run",
        "spec.cluster.workers=1",
        "spec.training.steps=40",
        "spec.checkpoint.everySteps=40",
        "spec.training.expectedBatchSize=4",
        "spec.privacy.targetEpsilon=100",
        "spec.dataset.unit={kind: User, column: user, atLeast: 40}",
        rows=users(records(160), 4),
    )
    drawn: list[list[int]] = []
    rows: Counter[int] = Counter()
    add_to, compute = ShardGradients.add_to, ShardGradients._compute

    def adding(self: ShardGradients, clipper: GridClipper, units: list[int], stop: StopSignal) -> bool:
        drawn.append(units)
        return add_to(self, clipper, units, stop)

    def computing(self: ShardGradients, batch: MicroBatch, dropout: KeyedSeeds) -> torch.Tensor:
        rows[len(drawn)] += len(batch.units)
        return compute(self, batch, dropout)

    monkeypatch.setattr(ShardGradients, "add_to", adding)
    monkeypatch.setattr(ShardGradients, "_compute", computing)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    assert all(rows[step] == 4 * len(units) for step, units in enumerate(drawn, start=1))  # all records of each user
    chances = 40 * len(drawn)
    assert abs(sum(map(len, drawn)) - 0.1 * chances) < 6 * (chances * 0.1 * 0.9) ** 0.5


@pytest.mark.slow
def test_three_workers_train_a_causal_model_on_users(tmp_path: Path) -> None:
    job = Job.make(
        tmp_path / "run",
        "spec.cluster.workers=3",
        "spec.cluster.worker.cpus=500m",
        "spec.training.steps=3",
        "spec.dataset.unit={kind: User, column: user, atLeast: 40}",
        "spec.training.expectedBatchSize=4",
        "spec.privacy.targetEpsilon=50",
        rows=users(completions(160), 3),  # type: ignore[arg-type]
        kind=CAUSAL,
    )
    assert job.run(KeepWeights()) == [0, 0, 0], job.errors()
    assert job.ended().reason == "Completed"
    assert job.revealed() == [3, 3, 3]
    assert len({(job.directory / f"weights-{rank}").read_text() for rank in range(3)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("visibility", ["Public", "Private"])
def test_only_a_public_evaluation_reaches_the_status(tmp_path: Path, visibility: str) -> None:
    evaluation = f"{{uri: other.jsonl, visibility: {visibility}, everySteps: 2}}"
    job = Job.make(tmp_path / "run", *SHORT, f"spec.evaluation={evaluation}")
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    evaluated = [(result.step, float(result.loss) > 0, result.accuracy) for result in job.status().evaluations]
    assert [step for step, *_ in evaluated] == ([2, 3] if visibility == "Public" else [])
    assert all(positive and accuracy is not None for _, positive, accuracy in evaluated)
    assert visibility in json.loads(job.store().read("final")["statement.json"])["evaluation"]


@pytest.mark.slow
def test_f1_of_a_private_set_stays_in_the_owners_file(tmp_path: Path) -> None:
    job = Job.make(
        tmp_path / "run",
        *SHORT,
        "spec.evaluation={uri: other.jsonl, visibility: Private, everySteps: 2}",
        "spec.observability.privateMetrics=Internal",
        kind=TAGS,
    )
    job.train_alone()
    assert job.status().evaluations == ()
    assert not any('"f1"' in line or "evaluated" in line for line in (job.directory / RUN_LOG).read_text().splitlines())
    (path,) = job.private.path.glob("private-*")
    figures = [json.loads(line) for line in path.read_text().splitlines()]
    assert [sorted(each) for each in figures if "evaluationLoss" in each] == [
        ["evaluationAccuracy", "evaluationF1", "evaluationLoss", "step"]
    ] * 2


@pytest.mark.slow
def test_private_evaluation_reaches_the_owners_file_only(tmp_path: Path) -> None:
    job = Job.make(
        tmp_path / "run",
        *SHORT,
        "spec.evaluation={uri: other.jsonl, visibility: Private, everySteps: 2}",
        "spec.observability.privateMetrics=Internal",
    )
    job.train_alone()
    assert job.status().evaluations == ()
    (path,) = job.private.path.glob("private-*")
    assert [json.loads(line)["step"] for line in path.read_text().splitlines() if "evaluationLoss" in line] == [2, 3]


@pytest.mark.slow
def test_private_evaluation_sends_no_sum_in_the_clear(tmp_path: Path) -> None:
    job = Job.make(
        tmp_path / "run",
        *SHORT,
        "spec.evaluation={uri: other.jsonl, visibility: Private, everySteps: 2}",
        "spec.observability.privateMetrics=Internal",
    )
    job.attempt = 1
    channel = RecordingChannel()
    train(job.config(), channel, torch.device("cpu"))
    (path,) = job.private.path.glob("private-*")
    (loss, *_) = [each["evaluationLoss"] for each in map(json.loads, path.open()) if "evaluationLoss" in each]
    sums = [loss * size for size in range(1, 1 + len(Shard.open(job.shards[0])))]
    assert not [found for found in channel.doubles() if any(abs(found - each) < 1e-9 for each in sums)]


class RecordingChannel(SingleRankChannel):
    """Keeps what the worker sends to all workers."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def all_gather(self, message: bytes) -> list[bytes]:
        self.sent.append(message)
        return super().all_gather(message)

    def doubles(self) -> list[float]:
        """All floats of eight bytes in the messages."""
        return [
            struct.unpack_from(form, message, start)[0]
            for message in self.sent
            for start in range(len(message) - 7)
            for form in ("<d", ">d")
        ]


def test_worker_that_never_started_can_be_closed(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    Worker(job.config(), SingleRankChannel(), torch.device("cpu")).close()
