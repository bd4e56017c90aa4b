"""What watching leaves behind: a job with everything of its own, small, and nothing of a job that is gone."""

from __future__ import annotations

import json
from typing import Any

from e2e.platform.fixtures.fake_cluster import JOB_UID, FakeCluster
from tensafe_operator import names
from tensafe_operator.plan.observed import ClusterWarning
from tensafe_operator.runtime.cache import Cache

KEY = ("clinic", "claims-triage")


def child(kind: str, name: str, uid: str = JOB_UID, **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "clinic", "uid": f"uid-{name}"}
    if kind == "RayJob":
        metadata["ownerReferences"] = [{"kind": "TenSafeTrainingJob", "name": "claims-triage", "uid": uid}]
    elif kind == "PrivacyLedger":
        more["spec"] = {"jobUID": uid}
    else:
        metadata["labels"] = {names.JOB_UID: uid}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


def filled() -> Cache:
    cache = Cache()
    assert cache.put_job(FakeCluster.with_job().job) == KEY
    assert (
        cache.put("RayJob", child("RayJob", "claims-triage-a1", spec={"suspend": False, "rayClusterSpec": {"x": 1}}))
        == KEY
    )
    assert cache.put("Pod", child("Pod", "worker", spec={"containers": ["much"]}, status={"phase": "Running"})) == KEY
    assert cache.put("PrivacyLedger", child("PrivacyLedger", names.ledger_name("claims-triage", JOB_UID))) == KEY
    return cache


def test_a_job_is_seen_with_everything_of_its_own() -> None:
    seen = filled().observed(KEY)
    assert seen is not None and seen.ledger is not None
    assert [each["metadata"]["name"] for each in seen.ray_jobs] == ["claims-triage-a1"]
    assert [each["metadata"]["name"] for each in seen.pods] == ["worker"]


def test_what_no_plan_looks_at_is_not_kept() -> None:
    seen = filled().observed(KEY)
    assert seen is not None
    assert "rayClusterSpec" not in json.dumps(seen.ray_jobs) and "much" not in json.dumps(seen.pods)


def test_children_of_another_uid_are_not_the_jobs() -> None:
    cache = filled()
    assert cache.put("Pod", child("Pod", "stranger", uid="another")) is None
    assert cache.put("Pod", {"kind": "Pod", "metadata": {"name": "x", "uid": "y"}}) is None
    seen = cache.observed(KEY)
    assert seen is not None and len(seen.pods) == 1


def test_a_deleted_object_goes_and_an_old_jobs_end_does_not_drop_the_new_one() -> None:
    cache = filled()
    assert cache.drop("Pod", child("Pod", "worker")) == KEY
    old = FakeCluster.with_job(metadata__uid="older").job
    cache.drop_job(old)
    seen = cache.observed(KEY)
    assert seen is not None and seen.pods == ()
    cache.drop_job(FakeCluster.with_job().job)
    assert cache.observed(KEY) is None
    assert cache.put("Pod", child("Pod", "late")) is None


def test_a_warning_about_a_pod_is_the_jobs() -> None:
    cache = filled()
    told = ClusterWarning("Pod", "worker", "FailedMount", "secret not found")
    assert cache.warn("uid-worker", told) == KEY
    assert cache.warn("uid-of-nobody", told) is None
    seen = cache.observed(KEY)
    assert seen is not None and seen.warnings == (told,)


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    cache = Cache()
    cache.put_job(FakeCluster.with_job(metadata__deletionTimestamp="2026-11-21T00:00:00Z").job)
    assert cache.observed(KEY) is None


def test_what_a_ray_cluster_is_warned_of_is_its_ray_jobs() -> None:
    cache = filled()
    quota = ClusterWarning("RayCluster", "claims-triage-a1-x7x7x", "FailedToCreateHeadPod", "exceeded quota: nopods")
    assert cache.warn("uid-of-the-cluster", quota) is None
    told = child("RayJob", "claims-triage-a1", status={"rayClusterName": "claims-triage-a1-x7x7x"})
    cache.put("RayJob", version(told, 4))
    assert cache.warn("uid-of-the-cluster", quota) == KEY
    seen = cache.observed(KEY)
    assert seen is not None and seen.warnings == (quota,)


def version(body: dict[str, Any], number: int) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "resourceVersion": str(number)}}


def test_what_comes_late_does_not_stand_for_what_is_known() -> None:
    cache, job = Cache(), FakeCluster.with_job().job
    cache.put_job(version({**job, "status": {"phase": "Running"}}, 12))
    cache.put_job(version({**job, "status": {"phase": "Starting"}}, 9))
    seen = cache.observed(KEY)
    assert seen is not None and seen.job["status"]["phase"] == "Running"


def test_the_echo_of_our_own_write_is_no_news_and_what_others_write_is() -> None:
    cache, job = Cache(), FakeCluster.with_job().job
    assert cache.put_job(version(job, 3)) == KEY
    cache.learn(version({**job, "status": {"phase": "Starting"}}, 5))
    seen = cache.observed(KEY)
    assert seen is not None and seen.job["status"]["phase"] == "Starting", "known before the event tells of it"
    assert cache.put_job(version({**job, "status": {"phase": "Starting"}}, 5)) is None
    assert cache.put_job(version(job, 6)) == KEY
    made = version(child("RayJob", "claims-triage-a1"), 7)
    cache.learn(made)
    assert cache.put("RayJob", made) is None
    assert cache.put("RayJob", version(made, 8)) == KEY


def test_an_answer_about_a_job_that_has_gone_meanwhile_brings_nothing_back() -> None:
    cache, job = Cache(), FakeCluster.with_job().job
    cache.put_job(version(job, 3))
    cache.drop_job(job)
    cache.learn(version(job, 5))
    assert cache.observed(KEY) is None
    assert cache.known() == []


def test_what_a_newer_list_does_not_have_is_forgotten_and_what_is_younger_is_not() -> None:
    cache, job = Cache(), FakeCluster.with_job().job
    cache.put_job(version(job, 3))
    cache.put("Pod", version(child("Pod", "gone"), 5))
    cache.put("Pod", version(child("Pod", "listed"), 5))
    cache.put("Pod", version(child("Pod", "younger"), 12))
    cache.keep_only("Pod", {"uid-listed"}, 10, "another-namespace")
    cache.keep_only("RayJob", set(), 10, None)
    seen = cache.observed(KEY)
    assert seen is not None and len(seen.pods) == 3
    cache.keep_only("Pod", {"uid-listed"}, 10, "clinic")
    seen = cache.observed(KEY)
    assert seen is not None and [each["metadata"]["name"] for each in seen.pods] == ["listed", "younger"]
    cache.keep_only("TenSafeTrainingJob", {job["metadata"]["uid"]}, 10, None)
    assert cache.known() == [KEY]
    cache.keep_only("TenSafeTrainingJob", set(), 10, None)
    assert cache.known() == []
