"""How pods of an attempt failed is known when the attempt fails much later."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, running_job
from tensafe_api.driver_exit_codes import driver_exit_code
from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import format_time
from tensafe_operator.children.rayjob import GRACE_SECONDS
from tensafe_operator.plan.attempts import Assessment, AttemptState
from tensafe_operator.plan.failed_pods import remember_failed_pods, with_failed_pods
from tensafe_operator.plan.observed import Observed

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


def test_pod_that_had_failed_before_it_was_deleted_is_named() -> None:
    """A sidecar kept it, so that KubeRay deleted it before it was reported as failed."""
    cluster, operator = running_job()
    status = ended(cluster, 1, phase="Running")
    cluster.now += 3
    replace_worker(cluster, "worker-1", status, deleted=True)
    cluster.pods["worker-1"]["metadata"] |= {
        "deletionTimestamp": format_time(cluster.now + GRACE_SECONDS),
        "deletionGracePeriodSeconds": GRACE_SECONDS,
    }
    operator.settle()
    assert message_of(cluster) == "pod worker-1: container ray-worker ended with exit code 1 (Error)"


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


@pytest.mark.parametrize(
    ("reason", "explained"),
    [
        (Reason.WORKER_LOST, True),
        (Reason.AGGREGATION_FAILED, True),
        (Reason.RESOURCES_MISSING, True),
        (Reason.INVALID_MANIFEST, False),
        (Reason.MODEL_UNSUPPORTED, False),
        (Reason.MODEL_UNAVAILABLE, False),
        (Reason.DATASET_UNREADABLE, False),
        (Reason.PRIVACY_BUDGET_EXCEEDED, False),
    ],
)
def test_end_that_names_its_own_cause_does_not_name_failed_pods(reason: Reason, explained: bool) -> None:
    """A lack of memory an hour before seemed to be why a manifest is invalid."""
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", killed(cluster))
    fail(cluster, operator, driver_exit_code(reason))
    assert cluster.status["attempts"][0]["reason"] == reason
    assert ("before that" in str(message_of(cluster))) == ("worker-1" in str(cluster.status)) == explained


def test_message_is_bounded_and_one_line() -> None:
    cluster, operator = running_job()
    for number in range(9):
        text = {"reason": f"Cause{number}", "message": "a\n\x1b" + 5000 * "!"}
        fail_worker(cluster, operator, f"worker-{number}", ended(cluster, 1, **text))
    assert "Cause7: a \ufffd!" in str(message_of(cluster)) and "Cause6" not in str(message_of(cluster))
    fail(cluster, operator, 65)
    assert len(str(message_of(cluster))) <= 700 and "\n" not in str(message_of(cluster))
    assert all(f"Cause{number}: a \ufffd!" in str(message_of(cluster)) for number in (0, 7, 8))
    assert condition(cluster, "Failed")["message"].endswith(Reason.NO_PROGRESS.fix)


def test_first_cause_and_the_newest_two_are_named() -> None:
    """Three causes were kept for ever, and a fourth, which had ended the attempt, was not named."""
    cluster, operator = running_job()
    fail_worker(cluster, operator, "worker-1", evicted(cluster))
    fail_worker(cluster, operator, "worker-2", ended(cluster, 1))
    fail_worker(cluster, operator, "worker-3", ended(cluster, 1, reason="Terminated", message="node shutdown"))
    first, newer = f"pod worker-1: Evicted: {LOW}64200Ki", "pod worker-3: Terminated: node shutdown"
    assert message_of(cluster) == f"{first}; pod worker-2: container ray-worker ended with exit code 1 (Error); {newer}"
    fail_worker(cluster, operator, "worker-4", killed(cluster))
    newest = f"after other failures, {newer}; pod worker-4: {OUT_OF_MEMORY}"
    assert message_of(cluster) == f"{first}; {newest}"
    fail(cluster, operator, 65)
    assert f"; before that, {first}; {newest}. {Reason.NO_PROGRESS.fix}" in condition(cluster, "Failed")["message"]


def failed_pod(name: str, cause: str, at: float = 1.8e9) -> dict[str, Any]:
    """A pod of attempt 1 that the cluster has ended, with a reason and a message."""
    reason, _, message = cause.partition(": ")
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": format_time(at)}
    status = {"phase": "Failed", "reason": reason, "message": message, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": {"tensafe.io/attempt": "1"}}, "status": status}


def not_started(name: str, container: str, message: str) -> dict[str, Any]:
    """A pod of attempt 1 with a container that its node could not start."""
    state = {"exitCode": 128, "reason": "StartError", "message": message, "startedAt": "1970-01-01T00:00:00Z"}
    status = {"phase": "Failed", "containerStatuses": [{"name": container, "state": {"terminated": state}}]}
    return {"metadata": {"name": name, "labels": {"tensafe.io/attempt": "1"}}, "status": status}


def remembered(*pods: dict[str, Any], message: str | None = None) -> str:
    """The message of attempt 1, after a look at these pods."""
    seen = Observed({"status": {"attempts": [{"number": 1}]}}, None, (), pods, ())
    return remember_failed_pods(Attempt(number=1, message=message), seen).message or ""


ANY_CAUSE = st.sampled_from(["A", "B: b", "C: c. 5 of 6", "D: \x1bd; pod e: f", "E: " + 300 * "e", "F: g 7", "F: g 8"])


@given(st.lists(st.lists(st.tuples(ANY_CAUSE, st.integers(0, 3)), max_size=6), max_size=4), st.randoms())
def test_pods_that_stay_change_the_message_once(moments: list[list[tuple[str, int]]], random: random.Random) -> None:
    """Otherwise each pass would write a status, which starts the next pass."""
    message = None
    for moment in moments:
        pods = [failed_pod(f"p{number}", cause, 1.8e9 + time) for number, (cause, time) in enumerate(moment)]
        message = remembered(*pods, message=message)
        random.shuffle(pods)
        assert remembered(*pods, message=message) == message
        assert len(message.split("; ")) <= 3 and len(message) < 700


def test_pod_that_failed_last_is_named_whatever_order_pods_are_listed_in() -> None:
    pods = [failed_pod(f"p{number}", f"Cause{number}", 1.8e9 + number) for number in (4, 0, 3, 1, 2)]
    assert remembered(*pods) == "pod p0: Cause0; after other failures, pod p3: Cause3; pod p4: Cause4"


IN_MEMORY = (
    "Evicted: The node was low on resource: memory. Threshold quantity: {0}Mi, available: {1}Ki. Container ray-{2} was "
    "using {0}Gi, request is {1}Gi, has larger consumption of memory. "
)
ON_DISK = "Evicted: The node was low on resource: ephemeral-storage. Threshold quantity: {1}, available: {0}. "
CAUSES = (
    IN_MEMORY,
    ON_DISK,
    "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers {0}Gi. ",
    'Evicted: Usage of EmptyDir volume "shm" exceeds the limit "{0}Gi". ',
    "Evicted: The node had condition: [DiskPressure]. ",
    "OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu, requested: {0}, used: {1}, capacity: 8000",
    "UnexpectedAdmissionError: Pod was rejected: Allocate failed due to requested number of devices unavailable for "
    "nvidia.com/gpu. Requested: {0}, Available: {1}, which is unexpected",
    "NodeLost: Node {2}-{0} which was running pod job-{2} is unresponsive",
    "Preempted: Preempted by pod 0af{0}-{1}b on node {2}",
    "Terminated: Pod was terminated in response to imminent node shutdown.",
)


@given(st.sampled_from(CAUSES), st.sampled_from(CAUSES), st.lists(st.integers(1, 10**7), min_size=2))
def test_causes_differ_by_their_kind_and_not_by_their_numbers(one: str, other: str, numbers: list[int]) -> None:
    """An eviction for memory was not named after one for ephemeral storage."""
    message = None
    for number in numbers:
        for cause in (one, other):
            text = cause.format(number, 3 * number, "head" if number % 2 else "worker")
            message = remembered(failed_pod(f"p{number}", text), message=message)
    assert len(str(message).split("; ")) == len({one, other})


def test_container_that_cannot_start_is_named_once_for_head_and_worker() -> None:
    text = 'failed to create containerd task: exec: "bash": executable file not found in $PATH'
    head, worker = not_started("h", "ray-head", text), not_started("w", "ray-worker", f"{text}: container 9e1b")
    assert remembered(head, worker) == f"pod h: container ray-head ended with exit code 128 (StartError): {text}"


def test_end_that_reports_one_eviction_does_not_hide_another_one() -> None:
    disk, memory = ON_DISK.format(7, 9), IN_MEMORY.format(7, 9, "worker")
    attempt = Attempt(number=1, message=remembered(failed_pod("a", disk), failed_pod("b", memory)))
    text = f"last reported: CrashLoop: pod c: {ON_DISK.format(8, 80)}"
    failed = Assessment(AttemptState.FAILED, Reason.START_DEADLINE_EXCEEDED, text)
    message = with_failed_pods(failed, attempt).message
    assert "before that, pod b: Evicted" in message and "pod a: " not in message
