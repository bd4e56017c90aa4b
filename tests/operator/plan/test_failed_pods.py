"""How pods of an attempt failed is known when the attempt fails much later."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, running_job
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import format_time
from tensafe_operator.plan.attempts import Assessment, AttemptState, Reason
from tensafe_operator.plan.failed_pods import with_failed_pods

WORKER = "claims-triage-a1-worker"
LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: "
OUT_OF_MEMORY = "container ray-worker ended with exit code 137 (OOMKilled)"


def ended(cluster: FakeCluster, code: int, why: str = "Error", **more: Any) -> dict[str, Any]:
    """The status of a pod whose container ran for an hour and has ended."""
    times = {"startedAt": format_time(cluster.now - 3600), "finishedAt": format_time(cluster.now)}
    state = {"terminated": {"exitCode": code, "reason": why, "message": "KeyError: a diagnosis", **times}}
    return {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{"name": "ray-worker", "state": state}],
    } | more


def killed(cluster: FakeCluster, **more: Any) -> dict[str, Any]:
    return ended(cluster, 137, "OOMKilled", **more)


def evicted(cluster: FakeCluster, available: str = "64200Ki", **more: Any) -> dict[str, Any]:
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    text = {"reason": "Evicted", "message": LOW + available, "conditions": [disrupted]}
    return ended(cluster, 137, **text, **more)


def replace_worker(cluster: FakeCluster, name: str, status: dict[str, Any], *, deleted: bool = False) -> None:
    """KubeRay has replaced the worker by a pod of this name and status."""
    (old,) = (each for each, pod in cluster.pods.items() if pod["metadata"]["labels"]["ray.io/node-type"] == "worker")
    metadata = {**cluster.pods.pop(old)["metadata"], "name": name}
    metadata.pop("deletionTimestamp", None)
    cluster.pods[name] = {"metadata": metadata | ({"deletionTimestamp": format_time(cluster.now)} if deleted else {})}
    cluster.pods[name]["status"] = status


def fail_worker(cluster: FakeCluster, operator: FakeOperator, name: str, status: dict[str, Any], **more: bool) -> None:
    """A worker of the running job fails, and is replaced by one that is ready."""
    (ready,) = (pod["status"] for pod in cluster.pods.values() if "worker" in pod["metadata"]["name"])
    replace_worker(cluster, name, status, **more)
    operator.settle()
    replace_worker(cluster, WORKER, ready)
    operator.settle()


def message_of(cluster: FakeCluster, number: int = 1) -> str | None:
    found: str | None = cluster.status["attempts"][number - 1].get("message")
    return found


def fail(cluster: FakeCluster, operator: FakeOperator, code: int) -> None:
    cluster.end_ray_job("FAILED", f"exit code {code}")
    operator.settle()


def test_no_progress_after_a_worker_was_out_of_memory_says_so() -> None:
    """KubeRay had replaced the pod, and no message said what the problem was that a user should fix."""
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", killed(cluster))
    assert message_of(cluster) == f"pod worker-1: {OUT_OF_MEMORY}"
    assert condition(cluster, "Stalled")["status"] == "False"
    operator = FakeOperator(cluster)  # it was restarted
    cluster.now += 600
    fail(cluster, operator, 65)
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "NoProgress"
    assert f"; before that, pod worker-1: {OUT_OF_MEMORY}. {Reason.NO_PROGRESS.fix}" in failed["message"]
    assert f"; before that, pod worker-1: {OUT_OF_MEMORY}" in str(message_of(cluster))


def test_last_attempt_names_how_its_own_pods_failed() -> None:
    cluster, operator = running_job(spec__retry={"maxAttempts": 2})
    fail_worker(cluster, operator, "worker-1", killed(cluster))
    fail(cluster, operator, 64)
    cluster.remove_terminating_pods()
    cluster.now += 600
    operator.settle()
    cluster.start_pods()
    cluster.acquire_ledger()
    operator.settle()
    assert message_of(cluster, 2) is None
    fail_worker(cluster, operator, "worker-2", evicted(cluster))
    fail(cluster, operator, 64)
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "AttemptsExhausted"
    assert f"; before that, pod worker-2: Evicted: {LOW}64200Ki (retry.maxAttempts is 2)" in failed["message"]
    assert "OOMKilled" in str(message_of(cluster, 1))


def test_each_cause_is_named_once_and_a_known_one_writes_nothing() -> None:
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", killed(cluster))
    fail_worker(cluster, operator, "worker-2", evicted(cluster))
    before = cluster.status["attempts"]
    for number in range(3, 7):
        fail_worker(cluster, operator, f"worker-{number}", killed(cluster))
        fail_worker(cluster, operator, f"again-{number}", evicted(cluster, f"{number}Ki"))
        assert cluster.status["attempts"] == before
    assert message_of(cluster) == f"pod worker-1: {OUT_OF_MEMORY}; pod worker-2: Evicted: {LOW}64200Ki"


@pytest.mark.parametrize("outcome", ["Completed", "Suspended"])
def test_attempt_that_does_not_fail_does_not_name_failed_pods(outcome: str) -> None:
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", killed(cluster))
    cluster.suspend(outcome == "Suspended")
    operator.settle()
    cluster.record_outcome(outcome)
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == {"Completed": "Succeeded"}.get(outcome, outcome)
    assert "worker-1" not in str(cluster.status)


def test_attempt_that_is_suspended_before_it_trains_does_not_name_failed_pods() -> None:
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", killed(cluster))
    cluster.suspend(True)
    operator.settle()
    cluster.now += 200  # the trainer does not stop
    operator.settle()
    assert cluster.status["phase"] == "Suspended" and "worker-1" not in str(cluster.status)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"reason": "Preempting", "message": "Preempted in order to admit critical pod"}, "Preempting: Preempted in"),
        ({"reason": "Terminated", "message": "imminent node shutdown"}, "Terminated: imminent node shutdown"),
        ({"reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        ({}, "container ray-worker ended with exit code 1 (Error)"),
    ],
)
def test_cause_is_what_the_kubelet_says(change: dict[str, Any], cause: str) -> None:
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", ended(cluster, 1, **change))
    assert str(message_of(cluster)).startswith(f"pod worker-1: {cause}")
    assert "diagnosis" not in str(cluster.status), "what a container writes may quote records"


def test_pod_that_the_scheduler_preempts_is_named() -> None:
    """It is deleted, and its containers end as they would after any deletion."""
    cluster, operator = running_job()
    text = {"reason": "PreemptionByScheduler", "message": "preempting to accommodate a higher priority pod"}
    disrupted = {"type": "DisruptionTarget", "status": "True", **text}
    fail_worker(cluster, operator, "worker-1", ended(cluster, 143, conditions=[disrupted]), deleted=True)
    assert message_of(cluster) == f"pod worker-1: {text['reason']}: {text['message']}"


def test_pod_that_was_out_of_memory_is_named_while_it_is_deleted() -> None:
    """A finalizer, or another container that stops slowly, keeps it."""
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", killed(cluster, phase="Running"), deleted=True)
    assert message_of(cluster) == f"pod worker-1: {OUT_OF_MEMORY}"


@pytest.mark.parametrize(("code", "deleted"), [(143, True), (0, False), (0, True)])
def test_pod_that_is_deleted_or_ends_well_is_not_remembered(code: int, deleted: bool) -> None:
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", ended(cluster, code), deleted=deleted)
    assert message_of(cluster) is None


def test_pod_of_another_attempt_is_not_remembered() -> None:
    cluster, operator = running_job()
    cluster.pods["other"] = {"metadata": {"name": "other", "labels": {"tensafe.io/attempt": "7"}}}
    cluster.pods["other"]["status"] = killed(cluster)
    operator.settle()
    assert message_of(cluster) is None


def test_end_that_reports_the_crash_itself_does_not_repeat_it() -> None:
    crash = "pod a: container ray-head ended with exit code 127 (Error)"
    attempt = Attempt(number=1, message=f"{crash}; pod b: {OUT_OF_MEMORY}")
    text = f"the pods did not start within 60 s; last reported: CrashLoop: {crash}"
    failed = Assessment(AttemptState.FAILED, Reason.START_DEADLINE_EXCEEDED, text)
    assert with_failed_pods(failed, attempt).message == f"{text}; before that, pod b: {OUT_OF_MEMORY}"


def test_message_is_bounded_and_one_line() -> None:
    cluster, operator = running_job()
    for number in range(9):
        text = {"reason": f"Cause{number}", "message": "a\n\x1b" + 5000 * "!"}
        fail_worker(cluster, operator, f"worker-{number}", ended(cluster, 1, **text))
    assert "Cause2: a \ufffd!" in str(message_of(cluster)) and "Cause3" not in str(message_of(cluster))
    fail(cluster, operator, 65)
    assert len(str(message_of(cluster))) <= 700 and "\n" not in str(message_of(cluster))
    assert condition(cluster, "Failed")["message"].endswith(Reason.NO_PROGRESS.fix)
