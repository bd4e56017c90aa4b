"""The time limits of all attempts together, and of the start of one."""

from __future__ import annotations

from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import format_time
from tensafe_operator.decision.deadline import check_deadline
from tensafe_operator.settings import Settings
from tests.support.fake_cluster import FakeCluster, FakeOperator, condition, running_job, started_job


def test_deadline_counts_all_attempts_together() -> None:
    cluster, operator = running_job(spec__activeDeadlineSeconds=900)
    cluster.now += 901
    operator.settle()
    assert cluster.status["phase"] == "Failed"
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"
    assert cluster.ray_jobs == {}


def attempt(number: int, start: float | None, end: float | None = None) -> Attempt:
    times = {"start_time": start, "end_time": end}
    return Attempt(number=number, **{name: format_time(at) for name, at in times.items() if at is not None})


def test_time_between_attempts_does_not_count() -> None:
    deadline = check_deadline([attempt(1, 100, 160), attempt(2, 1000)], limit=100, now=1030)
    assert (deadline.exceeded, deadline.at) == (None, 1040)


def test_attempt_that_has_not_started_does_not_count() -> None:
    assert check_deadline([attempt(1, None)], limit=100, now=1030).at == 1130


def test_time_in_the_queue_does_not_count() -> None:
    waited = attempt(1, 100).model_copy(update={"queued_seconds": 50, "queued_since": format_time(170)})
    assert check_deadline([waited], limit=100, now=1000).exceeded is None
    assert check_deadline([waited], limit=100, now=1000).at == 1080
    ended = attempt(1, 100, 300).model_copy(update={"queued_seconds": 150})
    assert check_deadline([ended, attempt(2, 1000)], limit=100, now=1030).at == 1050


def test_evicted_job_keeps_its_time() -> None:
    """From the start: 300 s of training, two hours in the queue, 300 s, an hour, and 300 s."""
    cluster, operator = running_job(spec__activeDeadlineSeconds=1000)
    for queued in (7200, 3600):
        cluster.now += 300
        operator.settle()
        cluster.evict()
        operator.settle()
        assert cluster.status["phase"] == "Queued"
        cluster.now += queued
        cluster.readmit()
        cluster.start_pods()
        operator.settle()
        cluster.acquire_ledger()
        cluster.charge(1)
        operator.settle()
        assert cluster.status["phase"] == "Running"
    cluster.now += 300
    operator.settle()
    assert cluster.status["phase"] == "Running"
    assert cluster.status["attempts"][0]["queuedSeconds"] == 10_800
    cluster.now += 200
    operator.settle()
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize("now", [1040, 2000])
def test_open_attempt_fails_when_the_deadline_has_passed(now: float) -> None:
    deadline = check_deadline([attempt(1, 100, 160), attempt(2, 1000)], limit=100, now=now)
    assert deadline.exceeded is not None
    assert (deadline.exceeded.reason, deadline.exceeded.state.over) == (Reason.DEADLINE_EXCEEDED, True)


def test_job_without_a_limit_has_no_deadline() -> None:
    deadline = check_deadline([attempt(1, 100)], limit=None, now=1e9)
    assert (deadline.exceeded, deadline.at) == (None, None)


def job_without_a_node(**changes: Any) -> tuple[FakeCluster, FakeOperator]:
    """A job whose first attempt has a deadline of 300 s for its start, and for whose worker no node has room."""
    cluster, operator = started_job(spec__startDeadlineSeconds=300, **changes)
    cluster.start_pods()
    now = format_time(cluster.now)
    cluster.ray_jobs["claims-triage-a1"]["status"] = {"jobDeploymentStatus": "Initializing", "startTime": now}
    no_room = {"reason": "Unschedulable", "message": "0/3 nodes: no GPU", "lastTransitionTime": now}
    placed = {"type": "PodScheduled", "status": "False", **no_room}
    cluster.pods["claims-triage-a1-worker"]["status"] = {"phase": "Pending", "conditions": [placed]}
    operator.settle()
    return cluster, operator


def test_job_that_does_not_start_in_time_names_what_it_waited_for() -> None:
    """The pods are gone soon, and nothing else would tell what to fix before the next job."""
    cluster, operator = job_without_a_node()
    assert operator.wake == cluster.now + 300
    cluster.now += 299
    operator.settle()
    assert cluster.status["phase"] == "Starting"
    cluster.now += 1
    operator.settle()
    failed = condition(cluster, "Failed")
    assert (cluster.status["phase"], failed["reason"]) == ("Failed", "StartDeadlineExceeded")
    waited_for = "Unschedulable: pod claims-triage-a1-worker: 0/3 nodes: no GPU"
    assert waited_for in cluster.status["attempts"][0]["message"] and waited_for in failed["message"]
    assert failed["message"].endswith(Reason.START_DEADLINE_EXCEEDED.fix)
    assert cluster.ray_jobs == {}


_UNSTARTED = {"exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z", "message": "no bash"}
_UNCREATED = {"reason": "CreateContainerError", "message": "failed to inject CDI devices"}


@pytest.mark.parametrize(
    ("phase", "state", "cause"),
    [
        (
            "Failed",
            {"terminated": _UNSTARTED},
            "exit code 128 (StartError): no bash",
        ),
        (
            "Pending",
            {"waiting": _UNCREATED},
            "CreateContainerError: failed to inject",
        ),
    ],
)
def test_job_whose_containers_do_not_start_in_time_names_the_cause(
    phase: str, state: dict[str, Any], cause: str
) -> None:
    cluster, operator = job_without_a_node()
    name = "claims-triage-a1-worker"
    cluster.pods[name]["status"] = {"phase": phase, "containerStatuses": [{"name": "ray", "state": state}]}
    operator.settle()
    cluster.now += 300
    operator.settle()
    assert condition(cluster, "Failed")["reason"] == "StartDeadlineExceeded"
    message = cluster.status["attempts"][0]["message"]
    assert name in message and message.count(cause) == 1


def test_job_whose_pods_never_ran_names_a_pod_when_its_time_is_over() -> None:
    """A scheduler that does not run writes nothing, and the status reports nothing in the first minutes."""
    cluster, operator = job_without_a_node(spec__activeDeadlineSeconds=60)
    cluster.pods["claims-triage-a1-worker"]["status"] = {"phase": "Pending"}
    operator.settle()
    cluster.now += 60
    operator.settle()
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"
    assert "pod claims-triage-a1-worker" in cluster.status["attempts"][0]["message"]


_PULLING = {"waiting": {"reason": "ContainerCreating"}}


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Pending", "containerStatuses": [{"state": _PULLING}]},
        {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
        None,
    ],
    ids=["image-is-pulled", "not-ready", "no-pod"],
)
def test_job_that_does_not_start_in_time_names_a_pod_without_a_known_problem(
    status: dict[str, Any] | None,
) -> None:
    """Pulling a large image is no problem that the operator reports, and may take longer than the deadline."""
    cluster, operator = job_without_a_node()
    if status is None:
        del cluster.pods["claims-triage-a1-worker"]
    else:
        cluster.pods["claims-triage-a1-worker"]["status"] = status
    operator.settle()
    cluster.now += 300
    operator.settle()
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "StartDeadlineExceeded"
    assert ("claims-triage-a1-worker" in cluster.status["attempts"][0]["message"]) == (status is not None)


def test_job_whose_pods_run_in_time_does_not_fail_because_kuberay_has_not_seen_it() -> None:
    """KubeRay's operator is restarted or has much to do. Nothing can undo the end of a job."""
    cluster, operator = job_without_a_node(spec__cluster__workers=1)
    cluster.pods["claims-triage-a1-worker"]["status"] = cluster.pods["claims-triage-a1-head"]["status"]
    cluster.now += 300
    operator.settle()
    assert cluster.status["phase"] == "Starting"
    cluster.pods["claims-triage-a1-worker"]["status"] = {"phase": "Pending"}
    operator.settle()
    assert cluster.status["phase"] == "Failed"


@pytest.mark.parametrize("deadline", [600, None])
def test_new_deadline_for_the_start_reaches_the_attempt_that_waits(deadline: int | None) -> None:
    cluster, operator = job_without_a_node()
    assert "preRunningDeadlineSeconds" not in cluster.ray_jobs["claims-triage-a1"]["spec"], "KubeRay would keep the old"
    cluster.job["spec"]["startDeadlineSeconds"] = deadline
    cluster.now += 599
    operator.settle()
    assert cluster.status["phase"] == "Starting"
    cluster.now += 1
    operator.settle()
    assert cluster.status["phase"] == ("Failed" if deadline else "Starting")


def test_deadline_for_the_start_ends_no_job_that_is_queued_or_being_suspended() -> None:
    cluster, operator = job_without_a_node()
    ray_job = cluster.ray_jobs["claims-triage-a1"]
    cluster.now += 300
    ray_job["spec"]["suspend"] = True  # Kueue takes its nodes back, and KubeRay has not seen that
    operator.settle()
    assert cluster.status["phase"] == "Queued"
    ray_job["spec"]["suspend"], ray_job["status"]["jobDeploymentStatus"] = False, "Suspended"
    operator.settle()
    assert cluster.status["phase"] == "Starting", "KubeRay counts from the new start"
    ray_job["status"]["jobDeploymentStatus"] = "Initializing"
    ray_job["metadata"]["deletionTimestamp"] = format_time(cluster.now)  # its finalizer holds it
    cluster.suspend(True)
    operator.settle()
    assert condition(cluster, "Running")["reason"] == "Suspending"


def test_attempt_that_charges_no_step_names_what_its_workers_waited_for() -> None:
    cluster, operator = running_job()
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
    cluster.pods["claims-triage-a1-worker"]["status"] = {"phase": "Pending", "conditions": [no_room]}
    operator.settle()
    cluster.now += Settings().stall_seconds
    operator.settle()
    message = cluster.status["attempts"][0]["message"]
    assert message.startswith("no step was charged within 1800 s of the")
    assert "Unschedulable: pod claims-triage-a1-worker: 0/3 nodes: no GPU" in message
