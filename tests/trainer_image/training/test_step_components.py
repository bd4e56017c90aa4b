"""The components of a rank are those that the manifest asks for, and nothing private is kept unasked."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensorguard.data.shard import Shard
from tensorguard.models import lora
from tensorguard.models.quantized import QuantizedLinear
from tensorguard.models.self_test import SelfTest
from tensorguard.models.source import resolve_model
from tensorguard.training import base_model, setup
from tensorguard.training.base_model import precision_of
from tensorguard.training.config import COUNTED_RECORDS_REMARK
from tensorguard.training.setup import StepComponents, _self_test, set_up
from tests.support.trainer.rank_harness import CAUSAL, Job

CPU = torch.device("cpu")
UNUSUAL = (
    "spec.lora.rank=3",
    "spec.lora.alpha=7",
    "spec.lora.dropout=0.25",
    "spec.lora.layers=[1]",
    "spec.training.learningRate=3e-3",
    "spec.training.weightDecay=0.125",
    "spec.training.warmupRatio=0.5",
    "spec.training.microBatchSize=6",
    "spec.privacy.maxGradNorm=0.5",
)


def made(directory: Path, *overrides: str, rank: int = 0) -> tuple[Job, StepComponents]:
    job = Job.make(directory / "run", *overrides)
    return job, set_up(job.config(), rank, CPU)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """A job with unusual values, and one with the defaults."""
    folder = tmp_path_factory.mktemp("jobs")
    return {"unusual": Job.make(folder / "unusual", *UNUSUAL), "plain": Job.make(folder / "plain")}


@pytest.fixture
def unusual(jobs: dict[str, Job]) -> tuple[Job, StepComponents]:
    """Rank 1 of the unusual job."""
    return jobs["unusual"], set_up(jobs["unusual"].config(), 1, CPU)


@pytest.fixture
def plain(jobs: dict[str, Job]) -> tuple[Job, StepComponents]:
    """Rank 0 of the job with the defaults."""
    return jobs["plain"], set_up(jobs["plain"].config(), 0, CPU)


@pytest.mark.slow
def test_optimizer_and_learning_rate_are_those_of_the_manifest(unusual: tuple[Job, StepComponents]) -> None:
    _, parts = unusual
    (group,) = parts.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (3e-3, 0.125)
    assert type(parts.optimizer) is torch.optim.AdamW
    assert parts.learning_rate(0) == pytest.approx(3e-3 / 7), "six of the twelve steps warm up"
    assert parts.learning_rate(6) == pytest.approx(3e-3)
    assert parts.learning_rate(9) == pytest.approx(1.5e-3)


@pytest.mark.slow
def test_trained_numbers_are_those_of_the_gradient_and_of_the_optimizer(unusual: tuple[Job, StepComponents]) -> None:
    _, parts = unusual
    trained = [parameter for parameter in parts.model.parameters() if parameter.requires_grad]
    assert {id(each) for each in parts.parameters} == {id(each) for each in trained}
    assert [id(each) for each in parts.parameters] == [id(each) for _, each in parts.per_example_gradients.parameters]
    assert [id(each) for each in parts.optimizer.param_groups[0]["params"]] == [id(each) for each in parts.parameters]
    assert parts.dimension == sum(parameter.numel() for parameter in trained)
    assert all(parameter.dtype == torch.float32 for parameter in trained)


def test_adapter_is_that_of_the_manifest(unusual: tuple[Job, StepComponents]) -> None:
    _, parts = unusual
    lora = parts.model.peft_config["default"]
    assert (lora.r, lora.lora_alpha, lora.lora_dropout) == (3, 7, 0.25)
    trained = {name for name, parameter in parts.model.named_parameters() if parameter.requires_grad and "lora" in name}
    assert len(trained) == 4 and all(".layer.1." in name for name in trained)
    assert {name.split(".self.")[1].split(".")[0] for name in trained} == {"query", "value"}
    assert parts.model.training


@pytest.mark.slow
def test_variant_of_the_adapter_is_that_of_the_manifest(tmp_path: Path, plain: tuple[Job, StepComponents]) -> None:
    _, frozen = made(tmp_path, "spec.lora.variant=FrozenA")
    trained = [name for name, _ in frozen.per_example_gradients.parameters]
    assert [name for name, _ in plain[1].per_example_gradients.parameters if "lora_A" not in name] == trained


@pytest.mark.slow
def test_causal_model_is_trained_and_evaluated_without_its_logits(
    tmp_path: Path, plain: tuple[Job, StepComponents]
) -> None:
    causal = set_up(Job.make(tmp_path / "run", kind=CAUSAL).config(), 0, CPU)
    assert causal.output_head is not None
    assert causal.output_head.layer is causal.model.get_output_embeddings()
    assert causal.per_example_gradients._loss == causal.output_head.losses
    assert plain[1].output_head is None


def test_alpha_is_twice_the_rank_by_default(plain: tuple[Job, StepComponents]) -> None:
    lora = plain[1].model.peft_config["default"]
    assert (lora.r, lora.lora_alpha) == (2, 4)


def test_mechanism_is_that_of_the_plan(unusual: tuple[Job, StepComponents]) -> None:
    job, parts = unusual
    mechanism = job.plan.mechanism
    assert parts.plan == job.plan
    assert (parts.clipper.grid, parts.clipper.clip) == (mechanism.grid, 0.5)
    assert parts.sampler._threshold == int(Fraction(mechanism.sample_rate) * 2**64)
    assert parts.noise._tables[0].total_variation == type(parts.noise)(mechanism.share_sigma)._tables[0].total_variation
    assert parts.noise._stretch == type(parts.noise)(mechanism.share_sigma)._stretch


def test_shard_is_that_of_the_rank(unusual: tuple[Job, StepComponents], plain: tuple[Job, StepComponents]) -> None:
    def texts(shard: Shard) -> list[list[int]]:
        return [list(shard.tokens(record)) for unit in range(len(shard)) for record in shard.records(unit)]

    for (job, parts), rank in ((unusual, 1), (plain, 0)):
        assert Path(job.config().shards[rank]) == job.shards[rank]
        own, other = (setup.Shard.open(job.shards[each]) for each in (rank, 1 - rank))
        assert parts.sampler._units == len(parts.unit_gradients._shard) == len(own)
        assert texts(parts.unit_gradients._shard) == texts(own) != texts(other)


def test_streams_of_sampling_noise_and_seeds_are_different_and_secret(
    unusual: tuple[Job, StepComponents], plain: tuple[Job, StepComponents]
) -> None:
    streams = []
    for _, parts in (unusual, plain):
        streams += [parts.sampler._stream, parts.noise_stream, parts.unit_gradients._stream]
    assert len({stream._key for stream in streams}) == 6


def test_gradients_are_computed_in_micro_batches_of_the_manifest(unusual: tuple[Job, StepComponents]) -> None:
    _, parts = unusual
    assert parts.records_at_once == parts.unit_gradients._size == 6
    assert parts.unit_gradients._form is parts.form
    assert parts.unit_gradients._gradients is parts.per_example_gradients
    assert parts.per_example_gradients._loss_scale == 1.0


def test_base_model_is_identified_by_its_files(plain: tuple[Job, StepComponents]) -> None:
    job, parts = plain
    source = resolve_model(job.job.spec.model.name)
    assert parts.source == source
    assert parts.identity == {"name": source.name, "weights": source.identity()}
    assert parts.remarks == ()


@pytest.mark.slow
def test_quantisation_of_the_base_is_part_of_its_identity(tmp_path: Path, plain: tuple[Job, StepComponents]) -> None:
    job, parts = made(tmp_path, "spec.model.quantization=INT8", "spec.lora.modulesToSave=[output.dense]")
    source = resolve_model(job.job.spec.model.name)
    assert parts.identity == {"name": source.name, "weights": source.identity(), "quantization": "INT8"}
    layers = {name: module for name, module in parts.model.named_modules() if isinstance(module, QuantizedLinear)}
    assert all(layer.scheme == "INT8" for layer in layers.values())
    assert len(layers) == 9 and not any("output.dense" in name for name in layers)
    assert not any(isinstance(module, QuantizedLinear) for module in plain[1].model.modules())


def test_nothing_private_is_kept_by_default(plain: tuple[Job, StepComponents]) -> None:
    job, parts = plain
    assert parts.private_metrics is None
    assert parts.clipper._norms is None and parts.unit_gradients._losses is None
    assert not list(job.private.path.glob("private-metrics*"))
    assert parts.evaluation is None


def test_private_metrics_are_kept_for_the_rank_on_request(tmp_path: Path) -> None:
    evaluation = ("spec.evaluation.uri=public.jsonl", "spec.evaluation.visibility=Public")
    job, parts = made(tmp_path, "spec.observability.privateMetrics=Internal", *evaluation, rank=1)
    assert parts.private_metrics is not None
    assert parts.clipper._norms == [] and parts.unit_gradients._losses == []
    assert [file.name for file in job.private.path.glob("private-metrics*")] == ["private-metrics-rank1.jsonl"]
    assert parts.evaluation is not None and len(parts.evaluation) == len(setup.Shard.open(job.shards[0]))


def test_checkpoints_go_where_the_manifest_says(plain: tuple[Job, StepComponents]) -> None:
    job, parts = plain
    assert parts.store.uri("final") == job.store().uri("final")


def test_half_precision_has_its_loss_scale_and_fp32_factors(tmp_path: Path) -> None:
    _, parts = made(tmp_path, "spec.training.precision=fp16", "spec.training.lossScale=512")
    assert parts.per_example_gradients._loss_scale == 512.0
    frozen = {parameter.dtype for parameter in parts.model.parameters() if not parameter.requires_grad}
    assert frozen == {torch.float16}
    assert {parameter.dtype for parameter in parts.parameters} == {torch.float32}


@pytest.mark.slow
def test_gradient_checkpointing_is_switched_on_by_the_manifest(
    tmp_path: Path, plain: tuple[Job, StepComponents]
) -> None:
    _, parts = made(tmp_path, "spec.training.gradientCheckpointing=true")
    assert parts.model.is_gradient_checkpointing and not plain[1].model.is_gradient_checkpointing


@pytest.mark.parametrize(
    ("asked", "device", "precision"),
    [(None, "cpu", "fp32"), (None, "cuda", "bf16"), ("fp16", "cuda", "fp16"), ("bf16", "cpu", "bf16")],
)
def test_precision_is_that_of_the_manifest_or_of_the_device(asked: str | None, device: str, precision: str) -> None:
    job: Any = SimpleNamespace(spec=SimpleNamespace(training=SimpleNamespace(precision=asked)))
    assert precision_of(job, torch.device(device)) == precision


def test_counted_records_are_a_remark_of_the_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Job.make(tmp_path / "run")
    monkeypatch.setattr(setup, "_check_noise_sampler", lambda *parts: ("of the noise",))
    zero_out = counted.plan.mechanism.model_copy(update={"adjacency": "ZeroOut"})
    plan = type(counted.plan)(**{**vars(counted.plan), "mechanism": zero_out})
    monkeypatch.setattr(setup, "resolve_job", lambda job: (job, plan))
    parts = set_up(counted.config(), 0, CPU)
    assert parts.remarks == ("of the noise", COUNTED_RECORDS_REMARK.format(count=200))


def test_self_test_reports_the_largest_error_of_all_lengths(
    plain: tuple[Job, StepComponents], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, parts = plain
    errors = {8: SelfTest(0.3, neighbour_error=0.1), 16: SelfTest(0.1, neighbour_error=0.4, uneven="aten::tanh")}
    asked: list[tuple[Any, ...]] = []

    def batches(task: Any, form: Any, *, rows: int, length: int, device: Any) -> int:
        asked.append((task, form, rows, device))
        return length

    def test(model: Any, gradients: Any, clipper: Any, length: int) -> SelfTest:
        assert (model, gradients) == (parts.model, parts.per_example_gradients)
        assert (clipper.grid, clipper.clip) == (parts.clipper.grid, parts.clipper.clip)
        assert len(clipper.take()) == parts.dimension
        return errors[length]

    monkeypatch.setattr(setup, "dummy_batches", batches)
    monkeypatch.setattr(setup, "self_test", test)
    form: Any = SimpleNamespace(lengths=(8, 16))
    task: Any = "task"
    report = _self_test(task, form, parts.plan, parts.model, parts.per_example_gradients, CPU, 4)
    assert report == SelfTest(0.3, neighbour_error=0.4, uneven="aten::tanh")
    assert asked == [("task", form, 4, CPU)] * 2


def test_fewer_records_at_once_are_used_where_gradients_are_not_bit_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, torch.device]] = []

    def find(test: Any, *, rows: int, device: torch.device) -> int:
        asked.append((rows, device))
        return 3

    monkeypatch.setattr(setup, "find_bit_equal_shape", find)
    _, parts = made(tmp_path)
    assert asked == [(8, CPU)]
    assert parts.records_at_once == parts.unit_gradients._size == 3


def test_checkpoints_on_a_mounted_volume_have_its_address(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "mounts" / "claim")
    parts = set_up(replace(job.config(), mounts=str(tmp_path / "mounts")), 0, CPU)
    assert parts.store.uri("final") == "pvc://claim/checkpoints/final"


def test_model_is_loaded_and_adapted_as_the_manifest_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revision and code of the hub cannot be tried here, so the calls are recorded."""
    called: dict[str, Any] = {}

    def record(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            called[name] = (arguments, named)
            return real(*arguments[:1], None) if name == "resolve_model" else real(*arguments, **named)

        monkeypatch.setattr(module, name, call)

    record(lora, "attach_lora")
    record(base_model, "load_model")
    for name in ("resolve_model", "check_length", "_check_vocabulary"):
        record(setup, name)
    changes = ("spec.model.revision=abc", "spec.model.trustRemoteCode=true", "spec.lora.modulesToSave=[classifier]")
    job, _ = made(tmp_path, *changes)
    assert called["resolve_model"][0] == (job.job.spec.model.name, "abc")
    named = called["load_model"][1]
    assert (named["trust_remote_code"], named["pad_token_id"], named["precision"]) == (True, 0, "fp32")
    assert named["init_seed"] == job.job.spec.lora.init_seed and named["device"] == CPU
    named = called["attach_lora"][1]
    assert (tuple(named["modules_to_save"]), named["target_modules"]) == (("classifier",), ("query", "value"))
    assert named["init_seed"] == job.job.spec.lora.init_seed and named["alpha"] == 2 * named["rank"] == 4
    assert called["_check_vocabulary"][0][0].metadata.name == "tiny"
    assert called["check_length"][0][1:] == (job.job.spec.model.name, 16)


def test_model_chooses_its_own_layers_where_the_manifest_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: dict[str, Any] = {}
    attach = lora.attach_lora
    monkeypatch.setattr(lora, "attach_lora", lambda base, **given: named.update(given) or attach(base, **given))
    made(tmp_path, "spec.lora.targetModules=[]")
    assert named["target_modules"] is None and not named["layers"]
