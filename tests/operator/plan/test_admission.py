"""Which manifests can be run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, running_job, started_job


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


def test_grid_overflow_is_rejected_before_a_ledger_is_created() -> None:
    changes = {"spec__dataset__unit__atLeast": 10**7, "spec__training": {"steps": 10, "expectedBatchSize": 200_000}}
    cluster, _ = started_job(**changes)
    assert cluster.status["phase"] == "Pending"
    assert condition(cluster, "Accepted")["status"] == "False"
    assert "overflows the integer grid" in condition(cluster, "Accepted")["message"]
    assert cluster.ledger is None


def test_unknown_field_in_a_later_apply_does_not_stop_the_counting() -> None:
    cluster, operator = running_job()
    applied = {"spec": {**cluster.job["spec"], "cluster": {**cluster.job["spec"]["cluster"], "wokers": 3}}}
    annotation = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    cluster.job["metadata"]["annotations"] = annotation
    cluster.charge(10)
    operator.settle()
    assert (cluster.status["phase"], cluster.status["privacy"]["stepsCharged"]) == ("Running", 15)
