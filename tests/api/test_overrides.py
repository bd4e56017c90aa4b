"""`--set`: each value is read with the type of its field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tensafe_api.manifest.overrides import apply_overrides
from tensafe_api.manifest.text import ManifestError, load_manifest, parse_job


def set_in(manifest: dict[str, Any], *changes: str) -> dict[str, Any]:
    result = copy.deepcopy(manifest)
    assert apply_overrides(result, changes) == []
    parse_job(result)
    return result


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("spec.privacy.targetEpsilon=4", "4"),
        ('spec.privacy.targetEpsilon="4"', "4"),
        ("spec.privacy.maxGradNorm=1e-1", "1e-1"),
        ("spec.lora.rank=4", 4),
        ("spec.suspend=true", True),
        ("spec.lora.targetModules=[q_proj, 1]", ["q_proj", "1"]),
        ("spec.lora.layers=[4, 5]", [4, 5]),
        ("spec.model.name=a=b", "a=b"),
        ("spec.model.chatTemplate={{ messages }}: #", "{{ messages }}: #"),
        ("spec.cluster.worker={cpus: 2, gpus: 1}", {"cpus": "2", "gpus": 1}),
        ("spec.cluster.env=[{name: A, value: 1}]", [{"name": "A", "value": "1"}]),
        ("spec.cluster.nodeSelector={zone: 1}", {"zone": "1"}),
        ("spec.aggregation.verify=Strict", "Strict"),
        ("spec.childrenTTLSeconds=5", 5),
        ("spec.childrenTTLSeconds=1_0", 10),
        ("spec.privacy.maxGradNorm=1.10", "1.10"),
        ("spec.lora.targetModules=[no, 0.10, 1_0, null]", ["no", "0.10", "1_0", "null"]),
    ],
)
def test_value_is_read_with_the_type_of_its_field(change: str, value: object, minimal: dict[str, Any]) -> None:
    here: Any = set_in(minimal, change)
    for name in change.partition("=")[0].split("."):
        here = here[name]
    assert here == value


def test_key_of_a_map_can_contain_dots(minimal: dict[str, Any]) -> None:
    result = set_in(minimal, "metadata.labels.tensafe.io/team=a b", "spec.cluster.podLabels.app=x")
    assert result["metadata"]["labels"] == {"tensafe.io/team": "a b"}
    assert result["spec"]["cluster"]["podLabels"] == {"app": "x"}


def test_steps_replace_epochs_and_epochs_replace_steps(minimal: dict[str, Any]) -> None:
    by_steps = set_in(minimal, "spec.training.epochs=2", "spec.training.steps=20")
    assert by_steps["spec"]["training"] == {"steps": 20}
    assert set_in(by_steps, "spec.training.epochs=1")["spec"]["training"] == {"epochs": "1"}


def test_null_removes_a_field(minimal: dict[str, Any]) -> None:
    assert "serviceAccountName" not in set_in(minimal, "spec.cluster.serviceAccountName=null")["spec"]["cluster"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("spec.trainig.steps=20", "--set spec.trainig.steps: unknown field: did you mean training?"),
        ("spec.training.step=20", "--set spec.training.step: unknown field: did you mean steps?"),
        (
            "spec.learningRate=1",
            "--set spec.learningRate: unknown field here: did you mean spec.training.learningRate?",
        ),
        ("spec.suspend", "--set spec.suspend: has no value: write it as spec.training.steps=20"),
        (
            "status.phase=Failed",
            "--set status.phase: is not a field of metadata or spec: write a path such as spec.training.steps=20",
        ),
        (
            "spec.lora.rank.x=1",
            "--set spec.lora.rank.x: rank has no fields: set it as a whole, with spec.lora.rank=...",
        ),
        (
            "spec.lora.layers=[1",
            "--set spec.lora.layers: [1 is not YAML: write a list as [a, b] and a mapping as {name: value}",
        ),
        (
            'spec.privacy={targetEpsilon: "1", targetEpsilon: "20"}',
            '--set spec.privacy: has the key "targetEpsilon" twice: keep one of them',
        ),
        (
            "spec.cluster.env=[{name: A, name: B}]",
            '--set spec.cluster.env: has the key "name" twice: keep one of them',
        ),
        ('spec.cluster.nodeSelector="{zone: 1, zone: 2}"', "spec.cluster.nodeSelector: must be a mapping"),
        ("spec.lora.rank=many", 'spec.lora.rank: must be a whole number without quotes, not "many"'),
        ("spec.lora.rank=1e1", 'spec.lora.rank: must be a whole number without quotes, not "1e1"'),
        ("spec.lora.layers=[1_0.0]", 'spec.lora.layers[0]: must be a whole number without quotes, not "1_0.0"'),
        ("spec.suspend=0x1", 'spec.suspend: must be true or false, not "0x1"'),
        ("spec.privacy.targetEpsilon=1_000", 'spec.privacy.targetEpsilon: "1_000" is not a decimal number'),
        ("spec.privacy.targetEpsilon=nan", 'spec.privacy.targetEpsilon: "nan" is not a decimal number'),
    ],
)
def test_change_that_cannot_be_applied_is_reported(change: str, problem: str, minimal: dict[str, Any]) -> None:
    with pytest.raises(ManifestError) as refusal:
        load_manifest(repr(minimal), [change])
    (only,) = refusal.value.problems
    assert str(only).startswith(problem)


def test_failed_change_leaves_the_manifest_unchanged(minimal: dict[str, Any]) -> None:
    before = copy.deepcopy(minimal)
    assert len(apply_overrides(minimal, ["spec.lora.rank.x=1", "spec.nothing=1", "spec.lora.layers=["])) == 3
    assert minimal["spec"].pop("lora", {}) == {}
    assert minimal == before


def test_problems_of_changes_and_of_the_manifest_are_reported_together(minimal: dict[str, Any]) -> None:
    minimal["spec"]["cluster"]["workers"] = 999
    with pytest.raises(ManifestError) as refusal:
        load_manifest(repr(minimal), ["spec.trainig.steps=20", "spec.lora.rank=0"])
    assert [problem.path for problem in refusal.value.problems] == [
        "--set spec.trainig.steps",
        "spec.lora.rank",
        "spec.cluster.workers",
    ]
