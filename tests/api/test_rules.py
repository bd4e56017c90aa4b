"""Each rule between fields refuses what it should, accepts what it should, and says so at the right field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tensafe_api.problems import ManifestError, parse_job
from tensafe_api.resources.block import Block, Rule, block_of
from tensafe_api.resources.cluster import Cluster
from tensafe_api.resources.job import Spec, TenSafeTrainingJob
from tensafe_api.resources.learning import Training

ManifestWith = Callable[[Mapping[str, Any]], dict[str, Any]]

EXAMPLE_UNIT = {"kind": "Example", "atLeast": 5000}
CLASSES = {"spec.model.task": "SequenceClassification", "spec.dataset.columns": {"text": "note", "label": "ward"}}
TEXT = {"text": "note"}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


@dataclass(frozen=True)
class Example:
    """Changes to the shortest manifest that break one rule and no other, and changes that come close but keep it."""

    refused: dict[str, Any]
    at: str
    says: str
    kept: dict[str, Any]


EXAMPLES = [
    Example(
        {"spec.privacy.targetDelta": "2e-4"},
        "spec.privacy.targetDelta",
        "privacy.targetDelta must be below 1 / dataset.unit.atLeast: lower it, or leave it out for "
        "1 / (10 x unit.atLeast)",
        {"spec.privacy.targetDelta": "1.99e-4"},
    ),
    Example(
        {"spec.training": {"steps": 10, "expectedBatchSize": 5001}},
        "spec.training.expectedBatchSize",
        "training.expectedBatchSize must not be above dataset.unit.atLeast, since it counts units: lower it",
        {"spec.training": {"steps": 10, "expectedBatchSize": 5000}},
    ),
    Example(
        {"spec.aggregation.colludingWorkers": 2},
        "spec.aggregation.colludingWorkers",
        "aggregation.colludingWorkers must be below cluster.workers: lower it, or raise cluster.workers",
        {"spec.aggregation.colludingWorkers": 1},
    ),
    Example(
        {"spec.dataset.columns": {"text": "note", "label": "ward"}},
        "spec.dataset.columns",
        "dataset.columns must fit model.task: write text and label for SequenceClassification, and no label for "
        "CausalLM",
        {**CLASSES, "spec.model.numLabels": 3},
    ),
    Example(
        {"spec.model.chatTemplate": "{{ messages }}", "spec.dataset.columns": TEXT},
        "spec.model.chatTemplate",
        "model.chatTemplate belongs to conversations: write dataset.columns.messages, or leave it out",
        {"spec.model.chatTemplate": "{{ messages }}"},
    ),
    Example(
        {"spec.evaluation": {"uri": "s3://clinic/claims/", "visibility": "Public"}},
        "spec.evaluation.visibility",
        "evaluation.visibility must not be Public where evaluation.uri is dataset.uri, since the status would show "
        "exact losses of the private data: write Private, or the uri of a public set",
        {"spec.evaluation": {"uri": "s3://clinic/claims/", "visibility": "Private"}},
    ),
    Example(
        CLASSES,
        "spec.model.numLabels",
        "model.numLabels belongs to SequenceClassification: write it there (the number of classes), and leave it out "
        "for CausalLM",
        {**CLASSES, "spec.model.numLabels": 2},
    ),
    Example(
        {**CLASSES, "spec.model.numLabels": 3, "spec.model.labelNames": ["a", "b"]},
        "spec.model.labelNames",
        "model.labelNames must name each class once: write as many names as numLabels says, or leave it out",
        {**CLASSES, "spec.model.numLabels": 3, "spec.model.labelNames": ["a", "b", "c"]},
    ),
    Example(
        {"spec.lora.targetModules": ["all-linear", "q_proj"]},
        "spec.lora.targetModules",
        "lora.targetModules takes all-linear only by itself: write [all-linear], or the names of layers",
        {"spec.lora.targetModules": ["all-linear"]},
    ),
    Example(
        {"spec.dataset.columns": {"prompt": "p"}},
        "spec.dataset.columns",
        "dataset.columns must name one shape of data: write prompt and completion, or messages, or text",
        {"spec.dataset.columns": {"prompt": "p", "completion": "c"}},
    ),
    Example(
        {"spec.dataset.columns": {"text": "note", "tools": "t"}},
        "spec.dataset.columns.tools",
        "dataset.columns.tools belongs to conversations: write it beside messages, or leave it out",
        {"spec.dataset.columns": {"messages": "m", "tools": "t"}},
    ),
    Example(
        {**CLASSES, "spec.model.numLabels": 2, "spec.dataset.columns": {"messages": "m", "label": "ward"}},
        "spec.dataset.columns.label",
        "dataset.columns.label belongs to text: write it beside text, or leave it out",
        {**CLASSES, "spec.model.numLabels": 2},
    ),
    Example(
        {"spec.dataset.unit.column": None},
        "spec.dataset.unit.column",
        "unit.column belongs to User: write the column of the user's id there, and leave it out for Example",
        {"spec.dataset.unit": EXAMPLE_UNIT},
    ),
    Example(
        {"spec.dataset.unit": {**EXAMPLE_UNIT, "maxExamplesPerUnit": 8}},
        "spec.dataset.unit.maxExamplesPerUnit",
        "unit.maxExamplesPerUnit belongs to User: leave it out for Example",
        {"spec.dataset.unit": EXAMPLE_UNIT},
    ),
    Example(
        {"spec.dataset.lossOn": "Completion"},
        "spec.dataset.lossOn",
        "dataset.lossOn does not fit dataset.columns: write Completion with prompt and completion, Assistant with "
        "messages, All with any text, and leave it out for labels",
        {"spec.dataset.lossOn": "Assistant"},
    ),
    Example(
        {"spec.training": {"steps": 10, "epochs": "1"}},
        "spec.training",
        "training takes one of epochs and steps, not both: leave one of them out",
        {"spec.training": {"steps": 10}},
    ),
    Example(
        {"spec.training": {"steps": 10, "precision": "fp16"}},
        "spec.training.lossScale",
        'training.lossScale belongs to fp16: write it there, for example "1024", and leave it out otherwise',
        {"spec.training": {"steps": 10, "precision": "fp16", "lossScale": "1024"}},
    ),
    Example(
        {"spec.cluster.worker.gpus": 2},
        "spec.cluster.worker.gpus",
        "worker.gpus must be 0 or 1, since one worker is one rank: write 1 and raise cluster.workers",
        {"spec.cluster.worker.gpus": 1},
    ),
    Example(
        {"spec.cluster.env": [{"name": "A", "valueFrom": {}}]},
        "spec.cluster.env[0].valueFrom",
        "valueFrom takes exactly one source: write secretKeyRef or configMapKeyRef",
        {"spec.cluster.env": [{"name": "A", "valueFrom": SECRET}]},
    ),
    Example(
        {"spec.cluster.env": [{"name": "A", "value": ""}, {"name": "B", "value": "1", "valueFrom": SECRET}]},
        "spec.cluster.env[1]",
        "env takes exactly one of value and valueFrom for each name: write one of them",
        {"spec.cluster.env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": SECRET}]},
    ),
    Example(
        {"spec.cluster.envFrom": [{}]},
        "spec.cluster.envFrom[0]",
        "envFrom takes exactly one object for each entry: write secretRef or configMapRef",
        {"spec.cluster.envFrom": [{"secretRef": {"name": "s"}}]},
    ),
    Example(
        {"spec.cluster.volumes": [{"name": "v", "mountPath": "/v", "pvc": "p", "secret": "s"}]},
        "spec.cluster.volumes[0]",
        "volumes takes exactly one source for each entry: write one of pvc, secret, configMap and emptyDir",
        {"spec.cluster.volumes": [{"name": "v", "mountPath": "/v", "emptyDir": "1Gi"}]},
    ),
    Example(
        {"spec.cluster.image": "registry/trainer:1"},
        "spec.cluster.rayVersion",
        "cluster.rayVersion is needed with an image of your own: write the version of Ray in it",
        {"spec.cluster.image": "registry/trainer:1", "spec.cluster.rayVersion": "2.60.0"},
    ),
]

MORE_REFUSED = [
    {"spec.training": {"steps": 10, "lossScale": "1024"}},
    {"spec.training": {"steps": 10, "precision": "bf16", "lossScale": "1024"}},
    {"spec.model.numLabels": 2},
    {"spec.model.labelNames": ["a", "b"]},
    {"spec.dataset.columns": {}},
    {"spec.dataset.columns": {"messages": "m", "text": "t"}},
    {"spec.dataset.columns": {"messages": "m", "text": "t", "prompt": "p", "completion": "c"}},
    {"spec.dataset.columns": {"completion": "c"}},
    {"spec.dataset.columns": {"messages": "m", "prompt": "p"}},
    {"spec.dataset.unit": {**EXAMPLE_UNIT, "column": "id"}},
    {"spec.dataset.lossOn": "Completion", "spec.dataset.columns": TEXT},
    {"spec.dataset.lossOn": "Assistant", "spec.dataset.columns": TEXT},
    {**CLASSES, "spec.model.numLabels": 2, "spec.dataset.lossOn": "All"},
    {**CLASSES, "spec.model.numLabels": 2, "spec.dataset.columns": TEXT},
    {"spec.cluster.volumes": [{"name": "v", "mountPath": "/v"}]},
    {"spec.privacy.targetDelta": "0.5"},
    {"spec.evaluation": {"uri": "s3://clinic/claims", "visibility": "Public"}},
    {"spec.evaluation": {"uri": "file:///data/a/", "visibility": "Public"}, "spec.dataset.uri": "/data/a"},
    {"spec.evaluation": {"uri": "/data/a", "visibility": "Public"}, "spec.dataset.uri": "file:///data/a/"},
    {"spec.cluster.workers": 1, "spec.aggregation.colludingWorkers": 1},
]


def all_rules(block: type[Block] = TenSafeTrainingJob) -> Iterator[Rule]:
    """Every rule of the resource."""
    yield from block.rules
    for field in block.model_fields.values():
        inner = block_of(field.annotation)
        if inner:
            yield from all_rules(inner)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.at)
def test_rule(example: Example, manifest_with: ManifestWith) -> None:
    with pytest.raises(ManifestError) as refusal:
        parse_job(manifest_with(example.refused))
    assert [str(problem) for problem in refusal.value.problems] == [f"{example.at}: {example.says}"]
    assert parse_job(manifest_with(example.kept)).kind == "TenSafeTrainingJob"


@pytest.mark.parametrize("uri", ["s3://clinic/claims/eval/", "s3://clinic/claim", "clinic/claims", "/"])
def test_another_set_may_be_public(uri: str, manifest_with: ManifestWith) -> None:
    evaluation = {"uri": uri, "visibility": "Public"}
    assert parse_job(manifest_with({"spec.evaluation": evaluation})).spec.evaluation


def test_every_rule_has_an_example() -> None:
    assert {rule.message for rule in all_rules()} == {example.says for example in EXAMPLES}


@pytest.mark.parametrize("changes", MORE_REFUSED, ids=str)
def test_more_that_is_refused(changes: dict[str, Any], manifest_with: ManifestWith) -> None:
    with pytest.raises(ManifestError):
        parse_job(manifest_with(changes))


def test_a_rule_holds_for_python_objects_too() -> None:
    with pytest.raises(ValueError, match="one of epochs and steps, not both"):
        Training(epochs="1", steps=10)


def test_every_path_of_a_rule_is_a_field() -> None:
    """The API server refuses a CRD whose `fieldPath` leads nowhere."""
    blocks = {TenSafeTrainingJob, *blocks_in(TenSafeTrainingJob)}
    for block in blocks:
        for item in (*block.rules, *block.transitions):
            here: type[Block] | None = block
            for name in item.path.split(".")[1:]:
                assert here is not None, f"{block.__name__}{item.path}"
                fields = {field.alias: field for field in here.model_fields.values()}
                assert name in fields, f"{block.__name__}{item.path}"
                here = block_of(fields[name].annotation)


def blocks_in(block: type[Block]) -> Iterator[type[Block]]:
    for field in block.model_fields.values():
        inner = block_of(field.annotation)
        if inner:
            yield inner
            yield from blocks_in(inner)


def test_every_field_of_the_spec_may_change_or_has_a_rule_against_it() -> None:
    may_change = {"suspend", "activeDeadlineSeconds", "childrenTTLSeconds"}
    guarded = {change.path.split(".")[1] for change in Spec.transitions}
    assert guarded | may_change == {field.alias for field in Spec.model_fields.values()}
    assert not guarded & may_change
    assert ".cluster.workers" in {change.path for change in Spec.transitions}


def test_blocks_without_required_fields_are_never_null() -> None:
    """Else an empty block and an absent one would be two things that mean the same."""
    for block in {TenSafeTrainingJob, *blocks_in(TenSafeTrainingJob)}:
        for name, field in block.model_fields.items():
            inner = block_of(field.annotation)
            if inner is None or field.get_default(call_default_factory=True) is not None:
                continue
            demanding = any(part.is_required() for part in inner.model_fields.values()) or inner.rules
            assert demanding or name == "status", f"{block.__name__}.{name}"


def test_the_specification_cannot_be_changed_in_place() -> None:
    cluster = Cluster(workers=2)
    with pytest.raises(ValueError, match="frozen"):
        cluster.workers = 3
