"""A job is observed from the cache with its children and their warnings, without the parts that no decision needs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensafe_operator import names
from tensafe_operator.decision.observation import ClusterWarning
from tensafe_operator.kinds import KINDS
from tensafe_operator.observe import observe_cached, parse_warning
from tensafe_operator.runtime.cache import Cache
from tests.support.fake_cluster import JOB_UID, FakeCluster

KEY = ("clinic", "claims-triage")


def child(kind: str, name: str, uid: str = JOB_UID, **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "clinic", "uid": f"uid-{name}"}
    if kind == "RayJob":
        owner = {"kind": "TenSafeTrainingJob", "name": "claims-triage", "uid": uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    elif kind == "PrivacyLedger":
        more["spec"] = {"jobUID": uid}
    else:
        of_a_user = {"team": "label-of-a-user", "tensafe.io/more": "another"}
        metadata["labels"] = {names.JOB_UID: uid, "ray.io/node-type": "worker", **of_a_user}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


def at_version(body: dict[str, Any], number: int) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "resourceVersion": str(number)}}


def filled_cache() -> Cache[ClusterWarning]:
    cache = Cache[ClusterWarning](KINDS)
    assert cache.put("TenSafeTrainingJob", FakeCluster.with_job().job) == KEY
    ray_job = child("RayJob", "claims-triage-a1", spec={"suspend": False, "rayClusterSpec": {"x": 1}})
    assert cache.put("RayJob", ray_job) == KEY
    assert cache.put("Pod", child("Pod", "worker", spec={"containers": ["much"]}, status={"phase": "Running"})) == KEY
    assert cache.put("PrivacyLedger", child("PrivacyLedger", names.ledger_name("claims-triage", JOB_UID))) == KEY
    return cache


def test_job_is_observed_with_its_children() -> None:
    observed = observe_cached(filled_cache(), KEY)
    assert observed is not None and observed.ledger is not None
    assert [each["metadata"]["name"] for each in observed.ray_jobs] == ["claims-triage-a1"]
    assert [each["metadata"]["name"] for each in observed.pods] == ["worker"]


def test_fields_that_no_decision_needs_are_not_kept() -> None:
    observed = observe_cached(filled_cache(), KEY)
    assert observed is not None
    assert "rayClusterSpec" not in json.dumps(observed.ray_jobs) and "much" not in json.dumps(observed.pods)
    assert observed.pods[0]["metadata"]["labels"] == {names.JOB_UID: JOB_UID, "ray.io/node-type": "worker"}


def test_children_of_another_uid_are_not_the_jobs() -> None:
    cache = filled_cache()
    assert cache.put("Pod", child("Pod", "stranger", uid="another")) is None
    assert cache.put("Pod", {"kind": "Pod", "metadata": {"name": "x", "namespace": KEY[0], "uid": "y"}}) is None
    observed = observe_cached(cache, KEY)
    assert observed is not None and len(observed.pods) == 1


@pytest.mark.parametrize(
    ("kind", "own", "foreign"),
    [
        ("RayJob", "claims-triage-a1", "other"),
        ("NetworkPolicy", "claims-triage", "claims-triage-2"),
    ],
)
def test_object_belongs_to_the_job_that_controls_it_and_has_the_name_that_the_operator_gives(
    kind: str, own: str, foreign: str
) -> None:
    body = child("RayJob", own)
    assert names.job_uid_of(kind, body) == JOB_UID
    assert names.job_uid_of(kind, child("RayJob", foreign)) == ""
    body["metadata"]["ownerReferences"][0]["controller"] = False
    assert names.job_uid_of(kind, body) == ""


def test_of_long_texts_in_a_warning_only_the_start_is_kept() -> None:
    about = {"kind": "Pod", "name": "n" * 5000}
    kept = parse_warning({"involvedObject": about, "reason": "r" * 5000, "message": "exceeded quota" + "m" * 10**6})
    assert (len(kept.name), len(kept.reason), len(kept.message)) == (1024, 1024, 1024)
    assert kept.message.startswith("exceeded quota")


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"lastTimestamp": "1970-01-01T00:00:09Z", "eventTime": None}, 9.0),
        ({"eventTime": "1970-01-01T00:00:05.500000Z"}, 5.5),
        ({"eventTime": "1970-01-01T00:00:05Z", "series": {"lastObservedTime": "1970-01-01T00:00:30Z"}}, 30.0),
        ({"lastTimestamp": "yesterday"}, None),
        ({}, None),
    ],
)
def test_warning_has_the_time_at_which_it_was_last_reported(times: dict[str, Any], expected: float | None) -> None:
    assert parse_warning({"involvedObject": {}, "reason": "FailedToCreateHeadPod", **times}).time == expected


def test_deletion_of_an_older_job_of_the_same_name_does_not_drop_the_new_job() -> None:
    cache = filled_cache()
    assert cache.drop("Pod", child("Pod", "worker")) == KEY
    cache.drop("TenSafeTrainingJob", FakeCluster.with_job(metadata__uid="older").job)
    observed = observe_cached(cache, KEY)
    assert observed is not None and observed.pods == ()
    cache.drop("TenSafeTrainingJob", FakeCluster.with_job().job)
    assert observe_cached(cache, KEY) is None
    assert cache.put("Pod", child("Pod", "late")) is None


def test_job_that_is_being_deleted_is_observed_until_it_is_gone() -> None:
    cache = Cache[ClusterWarning](KINDS)
    job = FakeCluster.with_job(metadata__deletionTimestamp="2026-11-21T00:00:00Z").job
    cache.put("TenSafeTrainingJob", job)
    assert observe_cached(cache, KEY) is not None
    cache.drop("TenSafeTrainingJob", job)
    assert observe_cached(cache, KEY) is None


def test_warning_about_a_pod_is_the_jobs() -> None:
    cache = filled_cache()
    warning = ClusterWarning("Pod", "worker", "FailedMount", "secret not found")
    assert cache.warn(KEY[0], "Pod", "worker", "uid-worker", "FailedMount", warning) == KEY
    assert cache.warn(KEY[0], "Pod", "worker", "unknown uid", "FailedMount", warning) is None
    observed = observe_cached(cache, KEY)
    assert observed is not None and observed.warnings == (warning,)


def test_warning_about_a_ray_cluster_is_its_ray_jobs() -> None:
    cache, cluster = filled_cache(), "claims-triage-a1-x7x7x"
    quota = ClusterWarning("RayCluster", cluster, "FailedToCreateHeadPod", "exceeded quota: nopods")
    assert cache.warn(KEY[0], "RayCluster", cluster, "uid-of-the-cluster", quota.reason, quota) is None
    ray_job = child("RayJob", "claims-triage-a1", status={"rayClusterName": cluster})
    cache.put("RayJob", at_version(ray_job, 4))
    assert cache.warn(KEY[0], "RayCluster", cluster, "uid-of-the-cluster", quota.reason, quota) == KEY
    observed = observe_cached(cache, KEY)
    assert observed is not None and observed.warnings == (quota,)


@pytest.mark.parametrize("name", ["other-a1", "claims-triage", "claims-triage-a1-x7x7x"])
def test_ray_job_that_names_the_ray_cluster_of_another_job_takes_none_of_its_warnings(name: str) -> None:
    """As one with `clusterSelector` does, which any user may create with another job as its owner."""
    cache, cluster = filled_cache(), "claims-triage-a1-x7x7x"
    other = FakeCluster.with_job(metadata__name="other", metadata__uid="uid-other").job
    cache.put("TenSafeTrainingJob", at_version(other, 3))
    own = child("RayJob", "claims-triage-a1", status={"rayClusterName": cluster})
    foreign = child("RayJob", name, "uid-other", status={"rayClusterName": cluster})
    cache.put("RayJob", at_version(own, 4))
    cache.put("RayJob", at_version(foreign, 5))
    quota = ClusterWarning("RayCluster", cluster, "FailedToCreateHeadPod", "exceeded quota: nopods")
    assert cache.warn(KEY[0], "RayCluster", cluster, "uid-of-the-cluster", quota.reason, quota) == KEY
    cache.drop("RayJob", foreign)
    assert cache.warn(KEY[0], "RayCluster", cluster, "uid-of-the-cluster", quota.reason, quota) == KEY
