"""Each rule between fields refuses and accepts its examples, and reports the right field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tensafe_api.manifest.validation import ManifestError, parse_job
from tensafe_api.resources.base import Block, block_of
from tensafe_api.resources.cluster import Cluster, Worker
from tensafe_api.resources.job import Spec, TenSafeTrainingJob
from tensafe_api.resources.training import Training
from tests.support.rule_examples import MORE_REJECTED, RULE_EXAMPLES, RuleExample, all_rules

ManifestWith = Callable[[Mapping[str, Any]], dict[str, Any]]


@pytest.mark.parametrize("example", RULE_EXAMPLES, ids=lambda example: f"{example.rule}-{example.field}")
def test_rule_refuses_and_accepts_its_examples(example: RuleExample, manifest_with: ManifestWith) -> None:
    with pytest.raises(ManifestError) as refusal:
        parse_job(manifest_with(example.rejected))
    assert [(problem.path, problem.rule) for problem in refusal.value.problems] == [(example.field, example.rule)]
    assert parse_job(manifest_with(example.accepted)).kind == "TenSafeTrainingJob"


@pytest.mark.parametrize("uri", ["s3://clinic/claims/eval/", "s3://clinic/claim", "clinic/claims", "/"])
def test_evaluation_on_another_data_set_can_be_public(uri: str, manifest_with: ManifestWith) -> None:
    evaluation = {"uri": uri, "visibility": "Public"}
    assert parse_job(manifest_with({"spec.evaluation": evaluation})).spec.evaluation


def test_every_rule_has_an_example() -> None:
    rules = list(all_rules())  # those of a block that two fields have are there twice
    assert len({rule.id for rule in rules}) == len({rule.message for rule in rules})
    assert {rule.id for rule in rules} == {example.rule for example in RULE_EXAMPLES}


@pytest.mark.parametrize("changes", MORE_REJECTED, ids=str)
def test_more_invalid_manifests_are_refused(changes: dict[str, Any], manifest_with: ManifestWith) -> None:
    with pytest.raises(ManifestError):
        parse_job(manifest_with(changes))


def test_rule_applies_to_python_objects() -> None:
    with pytest.raises(ValueError, match="at most one of epochs and steps"):
        Training(epochs="1", steps=10)


def test_path_of_every_rule_is_a_field() -> None:
    """The API server refuses a CRD with a `fieldPath` that is not a field."""
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


def test_every_field_of_the_spec_can_change_or_has_a_transition_rule() -> None:
    may_change = {
        "suspend",
        "activeDeadlineSeconds",
        "startDeadlineSeconds",
        "childrenTTLSeconds",
        "podsTTLSeconds",
        "ttlSecondsAfterFinished",
    }
    guarded = {change.path.split(".")[1] for change in Spec.transitions}
    assert guarded | may_change == {field.alias for field in Spec.model_fields.values()}
    assert not guarded & may_change
    assert ".cluster.workers" in {change.path for change in Spec.transitions}


def test_blocks_without_required_fields_are_never_null() -> None:
    """Otherwise an empty block and an absent one would be two values with the same meaning."""
    for block in {TenSafeTrainingJob, *blocks_in(TenSafeTrainingJob)}:
        for name, field in block.model_fields.items():
            inner = block_of(field.annotation)
            if inner is None or field.get_default(call_default_factory=True) is not None:
                continue
            demanding = any(part.is_required() for part in inner.model_fields.values()) or inner.rules
            assert demanding or name == "status", f"{block.__name__}.{name}"


def test_each_gpu_is_a_rank() -> None:
    def ranks(workers: int, gpus: int) -> int:
        return Cluster(workers=workers, worker=Worker(gpus=gpus)).ranks

    assert (ranks(3, 0), ranks(3, 1), ranks(3, 8)) == (3, 3, 24)


def test_spec_is_immutable() -> None:
    cluster = Cluster(workers=2)
    with pytest.raises(ValueError, match="frozen"):
        cluster.workers = 3
