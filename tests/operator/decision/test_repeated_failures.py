"""Attempts that fail one after the other before they can train."""

from __future__ import annotations

from typing import Any

import pytest

from tensafe_api.fixes import Fix
from tensafe_api.reasons import Reason
from tensafe_api.timestamps import format_time
from tensafe_operator.decision.diagnosis import NODE_SECONDS
from tests.support.fake_cluster import SETTINGS, FakeCluster, FakeOperator, condition, started_job

UNREADABLE, NO_MODEL = "exit code 70", "exit code 72"


def end_attempts(cluster: FakeCluster, operator: FakeOperator, *ends: str) -> list[dict[str, Any]]:
    """End one attempt after the other; return the condition Stalled as it was after each reconcile."""
    seen: list[dict[str, Any]] = []

    def settle() -> None:
        for _ in range(8):
            cluster.take_snapshot()
            operator.reconcile()
            seen.append(condition(cluster, "Stalled"))

    for end in ends:
        cluster.start_pods()
        settle()
        cluster.end_ray_job("FAILED", end)
        settle()
        cluster.remove_terminating_pods()
        cluster.now += 400
        settle()
    return seen


@pytest.mark.slow
def test_failure_that_every_attempt_repeats_stalls_the_job_with_its_fix() -> None:
    """A wrong address stays wrong: the job asked for nothing, no alert fired, and each attempt took its GPUs again."""
    cluster, operator = started_job()
    assert {each["status"] for each in end_attempts(cluster, operator, *[UNREADABLE] * 2)} == {"False"}
    end_attempts(cluster, operator, UNREADABLE)
    stalled = condition(cluster, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "DatasetUnreadable")
    assert stalled["message"].startswith(f"attempts 1 to 3 have failed alike: {Reason.DATASET_UNREADABLE.sentence}")
    assert stalled["message"].endswith(Reason.DATASET_UNREADABLE.fix)
    assert (cluster.status["phase"], len(cluster.created)) == ("Starting", 4), "the attempts continue"
    since = stalled["lastTransitionTime"]
    seen = end_attempts(cluster, operator, *[UNREADABLE] * 3)
    assert {(each["status"], each["lastTransitionTime"]) for each in seen} == {("True", since)}, "it never flaps"


def test_report_stays_while_the_next_attempt_waits_in_a_queue() -> None:
    """Kueue holds back each attempt for a moment at least. Argo CD and alerts would follow each change."""
    cluster, operator = started_job(spec__cluster__queueName="clinic")
    for _ in range(3):
        cluster.readmit()
        end_attempts(cluster, operator, UNREADABLE)
    stalled = condition(cluster, "Stalled")
    assert (cluster.status["phase"], stalled["status"], stalled["reason"]) == ("Queued", "True", "DatasetUnreadable")
    cluster.readmit()
    seen = end_attempts(cluster, operator, UNREADABLE)
    assert {(each["status"], each["lastTransitionTime"]) for each in seen} == {("True", stalled["lastTransitionTime"])}


def test_report_stays_while_the_next_attempt_waits_for_a_node() -> None:
    """An autoscaler takes the nodes away between two attempts, and adds them again."""
    cluster, operator = started_job()
    end_attempts(cluster, operator, *[UNREADABLE] * 3)
    since = condition(cluster, "Stalled")["lastTransitionTime"]
    cluster.now += 60
    cluster.start_pods()
    now = format_time(cluster.now)
    no_room = {"reason": "Unschedulable", "message": "0/3 nodes: no GPU", "lastTransitionTime": now}
    placed = {"type": "PodScheduled", "status": "False", **no_room}
    cluster.pods["claims-triage-a4-worker"]["status"] = {"phase": "Pending", "conditions": [placed]}
    cluster.ray_jobs["claims-triage-a4"]["status"] = {"jobDeploymentStatus": "Initializing"}
    operator.settle()
    stalled = condition(cluster, "Stalled")
    assert (stalled["reason"], stalled["lastTransitionTime"]) == ("DatasetUnreadable", since)
    cluster.now += NODE_SECONDS
    operator.settle()
    stalled = condition(cluster, "Stalled")
    assert (stalled["reason"], stalled["lastTransitionTime"]) == ("Unschedulable", since), "no node has come"


def test_end_of_an_attempt_does_not_quote_those_before_it() -> None:
    """Each message would hold all messages before it."""
    cluster, operator = started_job()
    for _ in range(5):
        cluster.start_pods()
        operator.settle()
        cluster.now += SETTINGS.stall_seconds
        operator.settle()
        cluster.remove_terminating_pods()
        cluster.now += 400
        operator.settle()
    assert condition(cluster, "Stalled")["reason"] == "WorkerLost"
    (message,) = {each["message"] for each in cluster.status["attempts"] if "endTime" in each}
    assert message.startswith(f"no step was charged within {SETTINGS.stall_seconds} s of the start")
    assert cluster.status["blocker"]["message"] == message


@pytest.mark.parametrize("end", ["exit code 1", "exit code 64", "exit code 79"])
def test_fix_of_a_repeated_failure_asks_for_action(end: str) -> None:
    """The fix of one such failure says that the job continues by itself."""
    cluster, operator = started_job()
    end_attempts(cluster, operator, *[end] * 3)
    stalled = condition(cluster, "Stalled")
    assert stalled["status"] == "True" and stalled["reason"] in ("WorkerLost", "AggregationFailed")
    assert cluster.status["blocker"]["fix"] == Fix.LOST_AGAIN
    assert "without action" not in stalled["message"] and "--resume" not in stalled["message"]


def test_attempt_that_trains_ends_the_report() -> None:
    cluster, operator = started_job()
    end_attempts(cluster, operator, *[UNREADABLE] * 3)
    cluster.start_pods()
    cluster.acquire_ledger()
    operator.settle()
    assert condition(cluster, "Stalled")["status"] == "False"
    cluster.charge(1)
    operator.settle()
    assert (cluster.status["phase"], condition(cluster, "Stalled")["status"]) == ("Running", "False")


@pytest.mark.parametrize("ends", [(UNREADABLE, NO_MODEL, UNREADABLE), (UNREADABLE, UNREADABLE, "")])
def test_failures_of_different_reasons_may_be_outages(ends: tuple[str, ...]) -> None:
    cluster, operator = started_job()
    assert {each["status"] for each in end_attempts(cluster, operator, *ends)} == {"False"}


def test_attempt_that_had_acquired_the_ledger_is_counted_by_max_attempts_instead() -> None:
    cluster, operator = started_job(spec__retry={"maxAttempts": 9})
    cluster.start_pods()
    cluster.acquire_ledger()
    assert {each["status"] for each in end_attempts(cluster, operator, *[UNREADABLE] * 3)} == {"False"}
    end_attempts(cluster, operator, UNREADABLE)
    assert condition(cluster, "Stalled")["message"].startswith("attempts 2 to 4 have failed alike")


def test_what_keeps_the_pods_from_running_is_reported_first() -> None:
    cluster, operator = started_job()
    end_attempts(cluster, operator, *[UNREADABLE] * 3)
    cluster.start_pods()
    waiting = {"name": "worker", "image": "x:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    cluster.pods["claims-triage-a4-worker"]["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    cluster.ray_jobs["claims-triage-a4"]["status"] = {"jobDeploymentStatus": "Initializing"}
    operator.settle()
    assert condition(cluster, "Stalled")["reason"] == "ImagePullFailed"
