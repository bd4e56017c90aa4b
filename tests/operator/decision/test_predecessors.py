"""An attempt waits until nothing of an earlier one is left."""

from __future__ import annotations

from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensafe_api.timestamps import format_time
from tensafe_operator import names
from tensafe_operator.decision.observation import Observed
from tensafe_operator.decision.predecessors import DELETED_SECONDS, FORGOTTEN_SECONDS, find_predecessors
from tests.support.fake_cluster import JOB_UID, FakeCluster, condition, running_job, started_job


def test_next_attempt_waits_for_the_pods_of_the_last_one() -> None:
    cluster, operator = running_job()
    cluster.end_ray_job("FAILED", "Job entrypoint command failed with exit code 1, last available logs: Jane Doe")
    operator.settle()
    assert cluster.status["attempts"][0]["reason"] == "WorkerLost"
    assert "Jane" not in str(cluster.status)
    cluster.now += 11
    operator.settle()
    assert condition(cluster, "Ready")["reason"] == "Retrying"
    assert list(cluster.ray_jobs) == ["claims-triage-a1"]
    cluster.remove_terminating_pods()
    operator.settle()
    assert cluster.created == ["claims-triage-a1", "claims-triage-a2"]


def test_pod_on_an_unreachable_node_blocks_for_five_minutes() -> None:
    cluster, operator = running_job()
    cluster.end_ray_job("FAILED")
    operator.settle()
    cluster.now += 11
    operator.settle()
    assert len(cluster.created) == 1
    cluster.now += FORGOTTEN_SECONDS
    operator.settle()
    assert len(cluster.created) == 2


def test_pod_that_no_component_deletes_stalls_the_job_until_it_is_gone() -> None:
    """The RayJob is gone, and a policy refuses the deletion of its RayCluster by the garbage collector."""
    cluster, operator = running_job()
    cluster.delete_ray_job("claims-triage-a1", cluster.ray_jobs["claims-triage-a1"]["metadata"]["uid"])
    for each in cluster.pods.values():
        del each["metadata"]["deletionTimestamp"]
    operator.settle()
    cluster.now += DELETED_SECONDS - 1
    operator.settle()
    assert condition(cluster, "Stalled")["status"] == "False"
    assert operator.wake == cluster.now + 1
    cluster.now += 1
    operator.settle()
    stalled = condition(cluster, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "PodsLeft")
    assert "pod claims-triage-a1-head: it is not being deleted" in stalled["message"]
    assert stalled["message"].endswith(Reason.PODS_LEFT.fix)
    cluster.pods.clear()
    operator.settle()
    assert cluster.created[-1] == "claims-triage-a2"
    assert condition(cluster, "Stalled")["status"] == "False"


@pytest.mark.parametrize("label", ["abc", "2147483647", "-1", ""])
def test_pod_with_an_invalid_attempt_label_does_not_block(label: str) -> None:
    cluster, operator = started_job()
    labels = {names.JOB_UID: JOB_UID, names.ATTEMPT: label}
    cluster.pods["stranger"] = {"metadata": {"name": "stranger", "labels": labels}}
    cluster.delete_ray_job("claims-triage-a1", cluster.ray_jobs["claims-triage-a1"]["metadata"]["uid"])
    operator.settle()
    cluster.now += 60
    operator.settle()
    assert list(cluster.ray_jobs) == ["claims-triage-a2"]


def pod(attempt: int, phase: str = "Running", deletion: float | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "pod", "labels": {names.ATTEMPT: str(attempt)}}
    if deletion is not None:
        metadata["deletionTimestamp"] = format_time(deletion)
    return {"metadata": metadata, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("left", "alive"),
    [
        (pod(1), True),
        (pod(2), True),
        (pod(3), False),
        (pod(1, "Succeeded"), False),
        (pod(1, "Failed"), False),
        (pod(1, deletion=1000), True),
        (pod(1, deletion=1000 - FORGOTTEN_SECONDS), False),
    ],
    ids=["earlier", "same-number", "later", "succeeded", "failed", "terminating", "on-an-unreachable-node"],
)
def test_pod_that_may_still_charge_blocks_the_next_attempt(left: dict[str, Any], alive: bool) -> None:
    observed = Observed(FakeCluster.with_job().job, pods=(left,))
    assert find_predecessors(observed, 2, 1000.0).alive is alive


def test_waiting_ends_when_the_node_of_a_terminating_pod_is_given_up() -> None:
    observed = Observed(FakeCluster.with_job().job, pods=(pod(1, deletion=900),))
    assert find_predecessors(observed, 2, 1000.0).wakes == (900 + FORGOTTEN_SECONDS,)
