"""Failed pods: which are crashes, when a crash is over, and what the attempt remembers of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensafe_api.driver_exit_codes import driver_exit_code
from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt, FailedPod, Status
from tensafe_api.timestamps import format_time
from tensafe_operator.children.rayjob import GRACE_SECONDS
from tensafe_operator.decision.diagnosis import NODE_SECONDS
from tensafe_operator.decision.failed_pods import CRASH_SECONDS, remember_failed_pods
from tensafe_operator.decision.observation import Observed
from tests.support.failed_pods import (
    HEAD,
    NO_BASH,
    ONE_WORKER,
    failed,
    replace_head,
    stalled,
    starting_job,
    unstarted,
)
from tests.support.fake_cluster import (
    FakeCluster,
    FakeOperator,
    condition,
    running_job,
    start_next_attempt,
)
from tests.support.fakes import statuses

WORKER = "claims-triage-a1-worker"
NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "low on memory"}
GATE_RUNS: dict[str, Any] = {"running": {}}
GATE_KILLED = {"terminated": {"exitCode": 137, "reason": "Error"}}


def with_gate(status: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The status of a head whose sidecar has this state."""
    return {**status, "initContainerStatuses": [{"name": "gate", "state": state}]}


def delete_head(cluster: FakeCluster, name: str, ago: float, grace: int = GRACE_SECONDS) -> None:
    """The deletion of a pod was requested so many seconds ago. It has `grace` seconds to end."""
    times = {"deletionTimestamp": format_time(cluster.now - ago + grace), "deletionGracePeriodSeconds": grace}
    cluster.pods[name]["metadata"] |= times


def test_two_containers_of_a_pod_may_fail_for_the_same_reason() -> None:
    """First its Ray container, and later a proxy that was added to the pod."""
    cluster, operator = running_job()
    proxy = {"name": "proxy", "state": {"running": {}}}
    for phase, state in (
        ("Running", {"running": {}}),
        ("Failed", {"terminated": {"exitCode": 255, "reason": "Error"}}),
    ):
        worker = {"name": "ray-worker", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
        statuses_ = [{**proxy, "state": state}, worker]
        cluster.pods[WORKER]["status"] = {"phase": phase, "containerStatuses": statuses_}
        operator.settle()
    status = Status.model_validate(cluster.status, by_alias=True, by_name=False)
    assert [each.exit_code for each in status.attempts[0].failed_pods or ()] == [1, 255]


# Crashes


@pytest.mark.parametrize("started", ["1970-01-01T00:00:00Z", "1754-08-30T22:43:41Z"])
def test_container_that_never_started_is_a_crash_and_says_why(started: str) -> None:
    """containerd reports a start of zero. A time of Go's that is not set becomes another date."""
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", unstarted(cluster, started))
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    blocker = cluster.status["blocker"]
    assert blocker["object"] == "pod head-1" and "StartError" in blocker["message"] and NO_BASH in blocker["message"]
    before = cluster.status
    replace_head(cluster, "head-2", unstarted(cluster, started, message=f"{NO_BASH} in container 4f2a"))
    operator.settle()
    assert cluster.status == before, "the text of the runtime may differ from pod to pod"


@pytest.mark.parametrize("more", [{}, {"startedAt": None}], ids=["ran", "may have run"])
def test_text_of_a_container_that_ran_is_not_copied(more: dict[str, None]) -> None:
    """It is what the container wrote, or the end of its log, and may quote records."""
    cluster, operator = starting_job()
    status = failed(cluster)
    status["containerStatuses"][0]["state"]["terminated"] |= {"message": "KeyError: a diagnosis", **more}
    replace_head(cluster, HEAD, status)
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    assert "diagnosis" not in str(cluster.status)


def evicted(cluster: FakeCluster) -> dict[str, Any]:
    """A pod that has used more than its own limit. For a lack of the node's, the kubelet adds a condition."""
    return failed(cluster, 600, reason="Evicted", message='Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". ')


def rejected(cluster: FakeCluster) -> dict[str, Any]:
    return {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU is healthy"}


def init_failed(cluster: FakeCluster) -> dict[str, Any]:
    container = {**failed(cluster)["containerStatuses"][0], "name": "certificate"}
    waits = [{"name": "ray-head", "state": {"waiting": {"reason": "PodInitializing"}}}]
    return {"phase": "Failed", "initContainerStatuses": [container], "containerStatuses": waits}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (failed, "exit code 127"),
        (lambda cluster: failed(cluster, seconds=-3600.0), "exit code 127"),
        (lambda cluster: with_gate(failed(cluster, phase="Running"), GATE_RUNS), "container ray-head"),
        (evicted, 'Evicted: Usage of EmptyDir volume "tmp"'),
        (rejected, "UnexpectedAdmissionError: no GPU is healthy"),
        (init_failed, "container certificate"),
    ],
    ids=["soon", "clock-set-back", "while-its-sidecar-runs", "evicted", "rejected", "init-container"],
)
def test_pod_that_its_replacement_repeats_is_a_crash(
    status: Callable[[FakeCluster], dict[str, Any]], words: str
) -> None:
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, status(cluster))
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    assert words in cluster.status["blocker"]["message"]


def lost(**more: Any) -> dict[str, Any]:
    """The status of a pod after a restart of its node: the kubelet has found no container, and reports no times."""
    ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    return {"phase": "Failed", "containerStatuses": [{"name": "ray-head", "state": {"terminated": ended}}], **more}


@pytest.mark.parametrize(
    "status",
    [
        lambda cluster: failed(cluster, seconds=3600.0),
        lambda cluster: failed(cluster, reason="Evicted", conditions=[DISRUPTED]),
        lambda cluster: failed(cluster, reason="Preempting", conditions=[DISRUPTED]),
        lambda cluster: lost(),
        lambda cluster: lost(reason="UnexpectedAdmissionError"),
        lambda cluster: with_gate(statuses.ready_pod(), GATE_KILLED),
    ],
    ids=["ran-for-an-hour", "node-under-pressure", "preempted", "lost", "lost-and-rejected", "restarted-sidecar"],
)
def test_pod_that_ends_otherwise_is_no_crash(status: Callable[[FakeCluster], dict[str, Any]]) -> None:
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, status(cluster))
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


@pytest.mark.parametrize(("ago", "grace"), [(0, GRACE_SECONDS), (2, GRACE_SECONDS), (0, 0), (0, 1)])
@pytest.mark.parametrize("phase", ["Failed", "Running"])
def test_pod_that_was_stopped_is_no_crash(phase: str, ago: float, grace: int) -> None:
    """After a shorter period, such as that of the kubelet's last request, it is not known when it was stopped."""
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, failed(cluster, phase=phase))
    cluster.now += 0 if grace == GRACE_SECONDS else 3
    delete_head(cluster, HEAD, ago, grace)
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    assert "failedPods" not in cluster.status["attempts"][0]


@pytest.mark.parametrize(("phase", "gate"), [("Running", GATE_RUNS), ("Failed", GATE_KILLED)])
@pytest.mark.parametrize("kind", [failed, unstarted])
def test_head_that_had_crashed_before_it_was_deleted_is_a_crash(
    kind: Callable[..., dict[str, Any]], phase: str, gate: dict[str, Any]
) -> None:
    """The operator may see a pod only after KubeRay has requested its deletion, or after the sidecar has ended."""
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", with_gate({**kind(cluster), "phase": phase}, gate))
    cluster.now += 3
    delete_head(cluster, "head-1", ago=1)
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    assert cluster.status["blocker"]["object"] == "pod head-1"


def test_helper_that_fails_while_the_pod_runs_is_no_crash() -> None:
    """A webhook has added a container to the pod, which does its work without it."""
    cluster, operator = running_job(**ONE_WORKER)
    helper = {**failed(cluster)["containerStatuses"][0], "name": "log-agent"}
    cluster.pods[WORKER]["status"]["containerStatuses"] = [helper, {"name": "ray-worker", "state": {"running": {}}}]
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)) == ("Running", ("False", "NotBlocked"))


# The end of a crash


def test_crash_is_reported_once_until_all_pods_are_ready() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    before, message = cluster.status, "a new pod every second must not cause a write every second"
    for number in range(2, 5):
        for status in ({"phase": "Pending"}, failed(cluster)):
            replace_head(cluster, f"head-{number}", status)
            operator.settle()
            assert cluster.status == before, message
        gone = cluster.pods.pop(f"head-{number}")
        operator.settle()
        assert cluster.status == before, message
        cluster.pods["head-0"] = gone
    replace_head(cluster, HEAD, statuses.ready_pod())
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


def test_crash_is_over_when_its_pods_last() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    replace_head(cluster, "head-2", {"phase": "Running"})
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    assert operator.wake == cluster.now + CRASH_SECONDS
    cluster.now += CRASH_SECONDS
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
    cluster, operator = starting_job()
    no_room = {**NO_ROOM, "lastTransitionTime": format_time(cluster.now)}
    cluster.pods[WORKER]["status"] = {"phase": "Pending", "conditions": [no_room]}
    replace_head(cluster, "head-0", failed(cluster))
    operator.settle()
    cluster.now += 2 * NODE_SECONDS
    for status in ({"phase": "Pending"}, failed(cluster)):
        replace_head(cluster, "head-1", status)
        operator.settle()
        assert stalled(cluster) == ("True", "CrashLoop")


def test_worker_of_a_running_job_that_crashes_stalls_it_until_it_is_ready() -> None:
    cluster, operator = running_job(**ONE_WORKER)
    ready, labels = cluster.pods[WORKER]["status"], cluster.pods[WORKER]["metadata"]["labels"]
    crashed = {**failed(cluster)["containerStatuses"][0], "name": "ray-worker"}
    cluster.pods[WORKER]["status"] = {"phase": "Failed", "containerStatuses": [crashed]}
    operator.settle()
    assert (cluster.status["phase"], *stalled(cluster)) == ("Starting", "True", "CrashLoop")
    metadata = {"name": "w-2", "labels": labels, "creationTimestamp": format_time(cluster.now)}
    del cluster.pods[WORKER]
    cluster.pods["w-2"] = {"metadata": metadata, "status": {"phase": "Pending"}}
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    cluster.pods["w-2"]["status"] = ready
    operator.settle()
    assert (cluster.status["phase"], *stalled(cluster)) == ("Running", "False", "NotBlocked")


def test_next_attempt_starts_without_the_crash_of_the_last_one() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", failed(cluster))
    operator.settle()
    start_next_attempt(cluster, operator)
    assert stalled(cluster) == ("False", "NotBlocked") and "blocker" not in cluster.status


# What the attempt remembers


def ended(cluster: FakeCluster, code: int, why: str = "Error", **more: Any) -> dict[str, Any]:
    """The status of a worker whose container ran for an hour."""
    times = {"startedAt": format_time(cluster.now - 3600), "finishedAt": format_time(cluster.now)}
    state = {"exitCode": code, "reason": why, "message": "a diagnosis", **times}
    return {"phase": "Failed", "containerStatuses": [{"name": "ray-worker", "state": {"terminated": state}}], **more}


def fail_worker(
    cluster: FakeCluster, operator: FakeOperator, name: str, status: dict[str, Any], *, deleted: bool = False
) -> None:
    """A worker of the running job fails, and is replaced by one that is ready."""
    (old,) = (each for each in cluster.pods if "worker" in each)
    before = cluster.pods.pop(old)
    metadata = {**before["metadata"], "name": name}
    gone = {"deletionTimestamp": format_time(cluster.now)} if deleted else {}
    cluster.pods[name] = {"metadata": {**metadata, **gone}, "status": status}
    operator.settle()
    del cluster.pods[name]
    cluster.pods[old] = before
    operator.settle()


def remembered_in(cluster: FakeCluster, number: int = 1) -> list[tuple[str, str]]:
    """The pods in the entry of an attempt, each with its reason."""
    return [(each["pod"], each["reason"]) for each in cluster.status["attempts"][number - 1].get("failedPods", ())]


def fail(cluster: FakeCluster, operator: FakeOperator, code: int) -> None:
    cluster.end_ray_job("FAILED", f"exit code {code}")
    operator.settle()


def test_no_progress_after_a_worker_was_out_of_memory_says_so() -> None:
    """KubeRay had replaced the pod, and no message said what the problem was that a user should fix."""
    cluster, operator = running_job(**ONE_WORKER)
    fail_worker(cluster, operator, "worker-1", ended(cluster, 137, "OOMKilled"))
    assert remembered_in(cluster) == [("worker-1", "OOMKilled")]
    assert cluster.status["attempts"][0]["failedPods"][0]["exitCode"] == 137
    operator = FakeOperator(cluster)  # it was restarted
    cluster.now += 600
    fail(cluster, operator, 65)
    shown = condition(cluster, "Failed")
    assert shown["reason"] == "NoProgress" and shown["message"].endswith(Reason.NO_PROGRESS.fix)
    assert "worker-1" in shown["message"] and "OOMKilled" in shown["message"]
    assert remembered_in(cluster) == [("worker-1", "OOMKilled")]


def test_each_cause_is_remembered_once_the_first_one_and_the_newest_two() -> None:
    cluster, operator = running_job(**ONE_WORKER)
    for number, reason in enumerate(("OOMKilled", "Killed", "OOMKilled", "Stopped", "Lost", "OOMKilled")):
        fail_worker(cluster, operator, f"worker-{number}", ended(cluster, 1, reason))
    assert remembered_in(cluster) == [("worker-0", "OOMKilled"), ("worker-3", "Stopped"), ("worker-4", "Lost")]


def test_attempt_remembers_its_own_pods_alone() -> None:
    cluster, operator = running_job(**ONE_WORKER)
    cluster.pods["other"] = {"metadata": {"name": "other", "labels": {"tensafe.io/attempt": "7"}}}
    cluster.pods["other"]["status"] = ended(cluster, 137, "OOMKilled")
    operator.settle()
    assert remembered_in(cluster) == []


@pytest.mark.parametrize("outcome", ["Completed", "Suspended"])
def test_attempt_that_does_not_fail_names_no_failed_pod_as_its_end(outcome: str) -> None:
    cluster, operator = running_job(**ONE_WORKER)
    fail_worker(cluster, operator, "worker-1", ended(cluster, 137, "OOMKilled"))
    cluster.suspend(outcome == "Suspended")
    operator.settle()
    cluster.record_outcome(outcome)
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == {"Completed": "Succeeded"}.get(outcome, outcome)
    assert "worker-1" not in str([cluster.status["conditions"], cluster.status["attempts"][0].get("message")])


@pytest.mark.parametrize(
    ("status", "deleted", "reason"),
    [
        ({"reason": "Terminated", "message": "imminent node shutdown"}, False, "Terminated"),
        ({"conditions": [{**DISRUPTED, "reason": "PreemptionByScheduler"}]}, True, "PreemptionByScheduler"),
        ({"phase": "Running"}, False, "Error"),
        ({}, True, None),
    ],
    ids=["kubelet", "scheduler", "while-its-sidecar-runs", "deleted"],
)
def test_cause_is_what_the_kubelet_or_the_scheduler_reports(
    status: dict[str, Any], deleted: bool, reason: str | None
) -> None:
    cluster, operator = running_job(**ONE_WORKER)
    fail_worker(cluster, operator, "worker-1", ended(cluster, 1, **status), deleted=deleted)
    assert [each for _, each in remembered_in(cluster)] == ([reason] if reason else [])
    assert "diagnosis" not in str(cluster.status), "what a container writes may quote records"


def test_pod_that_was_out_of_memory_is_remembered_while_it_is_deleted() -> None:
    """A finalizer, or another container that stops slowly, keeps it."""
    cluster, operator = running_job(**ONE_WORKER)
    fail_worker(cluster, operator, "worker-1", ended(cluster, 137, "OOMKilled", phase="Running"), deleted=True)
    assert remembered_in(cluster) == [("worker-1", "OOMKilled")]


@pytest.mark.parametrize(
    ("reason", "explained"),
    [
        (Reason.WORKER_LOST, True),
        (Reason.AGGREGATION_FAILED, True),
        (Reason.INVALID_MANIFEST, False),
        (Reason.MODEL_UNAVAILABLE, False),
        (Reason.PRIVACY_BUDGET_EXCEEDED, False),
    ],
)
def test_end_that_names_its_own_cause_does_not_name_failed_pods(reason: Reason, explained: bool) -> None:
    """A lack of memory an hour before seemed to be why a manifest is invalid."""
    cluster, operator = running_job(**ONE_WORKER)
    fail_worker(cluster, operator, "worker-1", ended(cluster, 137, "OOMKilled"))
    fail(cluster, operator, driver_exit_code(reason))
    assert cluster.status["attempts"][0]["reason"] == reason
    assert ("worker-1" in cluster.status["attempts"][0]["message"]) == explained


def test_message_is_bounded_and_one_line() -> None:
    cluster, operator = running_job(**ONE_WORKER)
    for number in range(5):
        text = {"reason": f"Cause{number}", "message": "a\n\x1b" + 5000 * "!"}
        fail_worker(cluster, operator, f"worker-{number}", ended(cluster, 1, **text))
    fail(cluster, operator, 65)
    message = cluster.status["attempts"][0]["message"]
    assert len(message) <= 700 and "\n" not in message and "\x1b" not in message
    assert condition(cluster, "Failed")["message"].endswith(Reason.NO_PROGRESS.fix)


def failed_pod(name: str, reason: str, at: float = 1.8e9) -> dict[str, Any]:
    """A pod of attempt 1 that the cluster has ended at this time."""
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": format_time(at)}
    status = {"phase": "Failed", "reason": reason, "message": f"about {name}", "conditions": [ready]}
    return {"metadata": {"name": name, "labels": {"tensafe.io/attempt": "1"}}, "status": status}


def remembered(pods: list[dict[str, Any]], before: tuple[FailedPod, ...] | None = None) -> tuple[FailedPod, ...] | None:
    """What attempt 1 remembers after a look at these pods."""
    seen = Observed({"status": {"attempts": [{"number": 1}]}}, None, (), tuple(pods), ())
    return remember_failed_pods(Attempt(number=1, failed_pods=before), seen).failed_pods


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ABCDEF"), st.integers(0, 3)), max_size=6), max_size=4), st.randoms()
)
def test_pods_that_stay_change_the_entry_once(moments: list[list[tuple[str, int]]], shuffled: random.Random) -> None:
    """Otherwise each pass would write a status, which starts the next pass."""
    before = None
    for moment in moments:
        pods = [failed_pod(f"p{number}", cause, 1.8e9 + after) for number, (cause, after) in enumerate(moment)]
        before = remembered(pods, before)
        shuffled.shuffle(pods)
        assert remembered(pods, before) == before
        assert len(before or ()) <= 3


def test_pod_that_failed_last_is_remembered_whatever_order_pods_are_listed_in() -> None:
    pods = [failed_pod(f"p{number}", f"Cause{number}", 1.8e9 + number) for number in (4, 0, 3, 1, 2)]
    assert [each.pod for each in remembered(pods) or ()] == ["p0", "p3", "p4"]
