"""A crash is reported once, until it is over or another blocker follows."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.platform.fakes import statuses
from e2e.platform.fixtures.failed_pods import (
    HEAD,
    ONE_WORKER,
    failed,
    replace_head,
    stalled,
    starting_job,
)
from e2e.platform.fixtures.fake_cluster import FakeCluster, condition, running_job
from tensafe_api.timestamps import format_time
from tensafe_operator.plan.crashes import CRASH_SECONDS
from tensafe_operator.plan.pending import NODE_SECONDS


def running_pod(cluster: FakeCluster) -> dict[str, Any]:
    """The status of a pod whose container has started now, and that is not ready."""
    running = {"running": {"startedAt": format_time(cluster.now)}}
    return {"phase": "Running", "containerStatuses": [{"name": "ray-worker", "state": running}]}


def test_crash_is_reported_once_until_all_pods_are_ready() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    message = condition(cluster, "Stalled")["message"]
    assert "pod head-1: container ray-head ended with exit code 127 (Error)" in message
    before = cluster.status
    for number in range(2, 5):
        for status in ({"phase": "Pending"}, failed(cluster)):
            replace_head(cluster, f"head-{number}", status)
            operator.settle()
            assert cluster.status == before, "a new pod every second must not cause a write every second"
    replace_head(cluster, HEAD, statuses.ready_pod())
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


def test_other_blocker_that_follows_a_crash_is_reported() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    waiting = {"name": "ray-head", "image": "none:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    replace_head(cluster, "head-2", {"phase": "Pending", "containerStatuses": [waiting]})
    operator.settle()
    assert stalled(cluster) == ("True", "ImagePullFailed")


def test_crash_is_reported_once_also_where_a_worker_has_no_node_for_long() -> None:
    """After ten minutes, each new head caused two writes and two Events."""
    cluster, operator = starting_job()
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
    no_room["lastTransitionTime"] = format_time(cluster.now)
    cluster.pods["claims-triage-a1-worker"]["status"] = {"phase": "Pending", "conditions": [no_room]}
    replace_head(cluster, "head-0", failed(cluster))
    operator.settle()
    before = cluster.status
    cluster.now += 2 * NODE_SECONDS
    for number in range(1, 4):
        for status in ({"phase": "Pending"}, failed(cluster)):
            replace_head(cluster, f"head-{number}", status)
            operator.settle()
            assert cluster.status == before and stalled(cluster) == ("True", "CrashLoop")


def test_crash_does_not_hide_that_no_pod_finds_a_node() -> None:
    """A driver was broken on all nodes, which an administrator has cordoned since."""
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: cordoned"}
    no_room["lastTransitionTime"] = format_time(cluster.now)
    waiting = {"phase": "Pending", "conditions": [no_room]}
    cluster.pods["claims-triage-a1-worker"]["status"] = waiting
    replace_head(cluster, "head-2", waiting)
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop"), "an autoscaler may add a node"
    cluster.now += NODE_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "Unschedulable")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("metadata", {"deletionTimestamp": format_time(0)}),
        ("status", {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}),
        ("status", {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
    ],
    ids=["deleted", "disrupted", "unschedulable"],
)
def test_crash_is_over_when_its_pod_runs_and_another_one_has_lost_its_node(part: str, change: dict[str, Any]) -> None:
    """A worker ran out of memory once. Its replacement runs, and then the node of the head is lost."""
    cluster, operator = starting_job()
    worker = cluster.pods["claims-triage-a1-worker"]
    worker["status"] = failed(cluster)
    operator.settle()
    cluster.pods[HEAD][part].update(change)
    worker["status"] = running_pod(cluster)
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop"), "it may fail again soon"
    assert operator.wake == cluster.now + CRASH_SECONDS
    cluster.now += CRASH_SECONDS
    operator.settle()
    assert stalled(cluster)[1] != "CrashLoop"


def test_crash_is_not_over_while_its_pod_is_missing() -> None:
    cluster, operator = starting_job()
    del cluster.pods["claims-triage-a1-worker"]
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    replace_head(cluster, "head-2", running_pod(cluster))
    cluster.now += CRASH_SECONDS
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")


def test_worker_of_a_running_job_that_crashes_stalls_it_until_it_is_ready() -> None:
    cluster, operator = running_job(**ONE_WORKER)
    worker = cluster.pods["claims-triage-a1-worker"]
    before = worker["status"]
    for status in (failed(cluster), {"phase": "Pending"}):
        worker["status"] = status
        operator.settle()
        assert (cluster.status["phase"], stalled(cluster)) == ("Starting", ("True", "CrashLoop"))
    worker["status"] = before
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)) == ("Running", ("False", "NotBlocked"))


def test_next_attempt_starts_without_the_crash_of_the_last_one() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    cluster.suspend(True)
    operator.settle()
    cluster.pods.clear()
    cluster.suspend(False)
    operator.settle()
    assert cluster.created[-1] == "claims-triage-a2"
    assert stalled(cluster) == ("False", "NotBlocked")
