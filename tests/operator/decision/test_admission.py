"""Which manifests can be run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensafe_api.resolve import resolve_job
from tensafe_operator.decision.admission import Admitted, admit, with_ledger_values
from tensafe_operator.decision.parsing import parse_ledger_spec
from tests.support.fake_cluster import FakeCluster, FakeOperator, condition, running_job, started_job


@pytest.mark.parametrize("place", ["dataset", "checkpoint"])
def test_relative_path_is_rejected_in_a_cluster(place: str) -> None:
    cluster = FakeCluster.with_job(**{f"spec__{place}__uri": "claims/here"})
    FakeOperator(cluster).settle()
    assert condition(cluster, "Accepted")["status"] == "False"
    assert f"spec.{place}.uri: claims/here" in condition(cluster, "Stalled")["message"]


@pytest.mark.parametrize(
    ("uri", "volumes", "taken"),
    [
        ("/ckpt", [], False),
        ("file:///ckpt/adapter", [], False),
        ("/ckpt", [{"name": "c", "mountPath": "/ckpt", "emptyDir": "1Gi"}], False),
        ("/ckpt", [{"name": "c", "mountPath": "/ckpt", "pvc": "models", "readOnly": True}], False),
        ("/ckpt/adapter", [{"name": "c", "mountPath": "/ckpt", "pvc": "models"}], True),
        ("pvc://models/adapter", [], True),
        ("s3://models/adapter", [], True),
    ],
)
def test_checkpoint_must_outlive_its_pod(uri: str, volumes: list[dict[str, Any]], taken: bool) -> None:
    cluster = FakeCluster.with_job(spec__checkpoint__uri=uri, spec__cluster__volumes=volumes)
    FakeOperator(cluster).settle()
    assert (condition(cluster, "Accepted")["status"] == "True") is taken
    assert taken or "would be lost with its pod" in condition(cluster, "Stalled")["message"]


@pytest.mark.slow
def test_grid_overflow_is_rejected_before_a_ledger_is_created() -> None:
    changes = {"spec__dataset__unit__atLeast": 10**7, "spec__training": {"steps": 10, "expectedBatchSize": 200_000}}
    cluster, _ = started_job(**changes)
    assert cluster.status["phase"] == "Pending"
    assert condition(cluster, "Accepted")["status"] == "False"
    assert "overflows the integer grid" in condition(cluster, "Accepted")["message"]
    assert cluster.ledger is None


SHARED: dict[str, Any] = {
    "storage": {"secretName": "release-key"},
    "checkpoint__encryption": {"recipientsConfigMap": "readers", "identitySecretName": "release-key"},
    "model__tokenSecret": {"name": "release-key", "key": "token"},
    "cluster__volumes": [{"name": "keys", "mountPath": "/keys", "readOnly": True, "secret": "release-key"}],
    "cluster__envFrom": [{"secretRef": {"name": "release-key"}}],
    "cluster__env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "release-key", "key": "a"}}}],
}


@pytest.mark.parametrize("field", [*SHARED, None])
def test_signing_key_that_the_job_gives_to_every_worker_is_rejected(field: str | None) -> None:
    changes = {f"spec__{field}": SHARED[field]} if field else {}
    cluster = FakeCluster.with_job(spec__checkpoint__signing={"secretName": "release-key"}, **changes)
    FakeOperator(cluster).settle()
    assert (condition(cluster, "Accepted")["status"] == "True") is (field is None)
    if field:
        message = condition(cluster, "Stalled")["message"]
        assert message.startswith(f"spec.{field.replace('__', '.')}") and "only one worker may have" in message


def test_relative_path_of_a_model_is_rejected_in_a_cluster() -> None:
    cluster = FakeCluster.with_job(spec__model__name="./model")
    FakeOperator(cluster).settle()
    assert condition(cluster, "Stalled")["message"].startswith("spec.model.name: ./model: is relative to the manifest")


@pytest.mark.parametrize(
    ("first", "adjacency"), [({}, "AddOrRemoveOne"), ({"tensafe.io/unit-at-least": "5000"}, "ZeroOut")]
)
def test_adjacency_stays_as_admitted_whatever_the_annotations_become(first: dict[str, str], adjacency: str) -> None:
    """Annotations of a job may change at any time. The workers compare the adjacency with that of the ledger."""
    cluster, operator = running_job(metadata__annotations=first)
    assert cluster.ledger is not None
    assert cluster.ledger["spec"]["mechanism"]["adjacency"] == cluster.status["privacy"]["adjacency"] == adjacency
    cluster.job["metadata"]["annotations"] = {} if first else {"tensafe.io/unit-at-least": "5000"}
    found = cluster.observe()
    opened = parse_ledger_spec(found.ledger)
    admitted = admit(found.job, opened, lambda figure: figure.compute())
    assert isinstance(admitted, Admitted) and opened is not None
    kept = with_ledger_values(admitted, opened)
    assert kept.claim.mechanism.adjacency == adjacency
    assert resolve_job(kept.job)[1].mechanism == opened.mechanism
    operator.settle()
    assert cluster.status["privacy"]["adjacency"] == adjacency


def test_ledger_opened_with_rdp_keeps_rdp() -> None:
    """The default was RDP in an earlier release. PLD would need less noise, and its ε would not be the ledger's."""
    cluster, operator = running_job(spec__privacy__accountant="RDP")
    assert cluster.ledger is not None
    before = dict(cluster.status["privacy"])
    del cluster.job["spec"]["privacy"]["accountant"]
    admitted = admit(cluster.observe().job, parse_ledger_spec(cluster.ledger), lambda figure: figure.compute())
    assert isinstance(admitted, Admitted) and admitted.claim.accountant == "RDP"
    cluster.job["metadata"]["annotations"] = {"changed": "yes"}
    operator.settle()
    assert cluster.ledger["spec"]["accountant"] == cluster.status["privacy"]["accountant"] == "RDP"
    assert cluster.status["privacy"] == before


def apply(cluster: FakeCluster, applied: object) -> None:
    """Leave what a client applied in its annotation, as `kubectl apply` does."""
    text = applied if isinstance(applied, str) else json.dumps(applied)
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": text}
    cluster.job["metadata"]["annotations"] = annotations
    cluster.take_snapshot()


def misspelt(cluster: FakeCluster) -> dict[str, Any]:
    spec = cluster.job["spec"]
    return {"spec": {**spec, "cluster": {**spec["cluster"], "wokers": 3}}}


def test_unknown_field_that_the_api_server_dropped_is_rejected() -> None:
    cluster = FakeCluster.with_job()
    apply(cluster, misspelt(cluster))
    FakeOperator(cluster).settle()
    stalled = condition(cluster, "Stalled")
    assert (stalled["reason"], cluster.ledger) == ("UnknownField", None)
    assert stalled["message"].startswith("spec.cluster.wokers: unknown field")
    assert cluster.status["blocker"]["reason"] == "UnknownField"


@pytest.mark.parametrize("applied", ["no JSON", "[]", {"spec": 3}])
def test_annotation_that_is_no_manifest_is_ignored(applied: object) -> None:
    cluster = FakeCluster.with_job()
    apply(cluster, applied)
    FakeOperator(cluster).settle()
    assert condition(cluster, "Accepted")["status"] == "True"


def test_unknown_field_in_a_later_apply_does_not_stop_the_counting() -> None:
    cluster, operator = running_job()
    apply(cluster, misspelt(cluster))
    cluster.charge(10)
    operator.settle()
    assert (cluster.status["phase"], cluster.status["privacy"]["stepsCharged"]) == ("Running", 15)
