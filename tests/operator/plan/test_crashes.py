"""A pod that fails right after its start is replaced by KubeRay at once and without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from e2e.platform.fakes import statuses
from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, running_job, started_job
from tensafe_api import fixes
from tensafe_api.reasons import Reason
from tensafe_api.timestamps import format_time
from tensafe_operator.children.rayjob import GRACE_SECONDS
from tensafe_operator.plan.crashes import CRASH_SECONDS
from tensafe_operator.plan.pending import NODE_SECONDS

ONE_WORKER = {"spec__cluster__workers": 1}
NAME, HEAD = "claims-triage-a1", "claims-triage-a1-head"

ISSUED = "no certificate: cert-manager issued a certificate that may not issue others (isCA)"


def starting_job() -> tuple[FakeCluster, FakeOperator]:
    cluster, operator = started_job(**ONE_WORKER)
    cluster.start_pods()
    cluster.ray_jobs[NAME]["status"] = statuses.initializing("claims-triage-a1-x", format_time(cluster.now))
    return cluster, operator


def failed(cluster: FakeCluster, seconds: float = 1.0, *, phase: str = "Failed", **more: Any) -> dict[str, Any]:
    """The status of a pod whose container ran for so long."""
    ended = {
        "exitCode": 127,
        "reason": "Error",
        "startedAt": format_time(cluster.now - seconds),
        "finishedAt": format_time(cluster.now),
    }
    return {"phase": phase, "containerStatuses": [{"name": "ray-head", "state": {"terminated": ended}}], **more}


NO_BASH = 'exec: "bash": executable file not found in $PATH'


def unstarted(cluster: FakeCluster, started: str = "1970-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    """The status of a pod whose container a node could not start, as the kubelet takes it over from containerd."""
    ended = {"exitCode": 128, "reason": "StartError", "startedAt": started, "message": NO_BASH}
    ended |= {"finishedAt": format_time(cluster.now), **more}
    return {"phase": "Failed", "containerStatuses": [{"name": "ray-head", "state": {"terminated": ended}}]}


def running_pod(cluster: FakeCluster) -> dict[str, Any]:
    """The status of a pod whose container has started now, and that is not ready."""
    running = {"running": {"startedAt": format_time(cluster.now)}}
    return {"phase": "Running", "containerStatuses": [{"name": "ray-worker", "state": running}]}


def replace_head(cluster: FakeCluster, name: str, status: dict[str, Any]) -> None:
    (old,) = (each for each, pod in cluster.pods.items() if pod["metadata"]["labels"]["ray.io/node-type"] == "head")
    pod = cluster.pods.pop(old)
    cluster.pods[name] = {"metadata": {**pod["metadata"], "name": name}, "status": status}


def stalled(cluster: FakeCluster) -> tuple[str, str]:
    found = condition(cluster, "Stalled")
    return found["status"], found["reason"]


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


@pytest.mark.parametrize("started", ["1970-01-01T00:00:00Z", "1754-08-30T22:43:41Z"])
def test_container_that_never_started_is_a_crash_and_says_why(started: str) -> None:
    """containerd reports a start of zero, which was taken for a run of 56 years. A time of Go's that is not set becomes
    another date.
    """
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", unstarted(cluster, started))
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    why = f"pod head-1: container ray-head ended with exit code 128 (StartError): {NO_BASH}: {Reason.CRASH_LOOP.fix}"
    assert condition(cluster, "Stalled")["message"] == why
    before = cluster.status
    replace_head(cluster, "head-2", unstarted(cluster, started, message=f"{NO_BASH} in container 4f2a"))
    operator.settle()
    assert cluster.status == before, "the text of the runtime may differ from pod to pod"


def test_message_of_a_runtime_is_one_short_line() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, unstarted(cluster, message="no\n\x1b[31mprogram" + 5000 * "!"))
    operator.settle()
    message = condition(cluster, "Stalled")["message"]
    assert "(StartError): no \ufffd[31mprogram!!!" in message and message.endswith(f"!: {Reason.CRASH_LOOP.fix}")


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


def test_container_that_ended_before_it_started_is_a_crash() -> None:
    """The clock of its node was set back."""
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, failed(cluster, seconds=-3600.0))
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")


def lost(**more: Any) -> dict[str, Any]:
    """The status of a pod after a restart of its node: the kubelet has found no container, and reports no times."""
    text = "The container could not be located when the pod was terminated"
    ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    states = [{"name": "ray-head", "state": {"terminated": {**ended, "message": text}}}]
    return {"phase": "Failed", "containerStatuses": states, **more}


@pytest.mark.parametrize("more", [{}, {"reason": "UnexpectedAdmissionError"}], ids=["lost", "and not admitted again"])
def test_pod_whose_node_restarts_is_no_crash(more: dict[str, str]) -> None:
    """As a crash it hid what its replacement waits for."""
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, lost(**more))
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
    replace_head(cluster, "head-1", {"phase": "Pending", "conditions": [no_room]})
    operator.settle()
    assert condition(cluster, "Ready")["reason"] == "Unschedulable"


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 3600.0},
        {"reason": "Preempting"},
    ],
    ids=["ran for an hour", "preempted"],
)
def test_pod_that_ends_otherwise_is_no_crash(change: dict[str, Any]) -> None:
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, failed(cluster, **change))
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


def delete_head(cluster: FakeCluster, name: str, ago: float, grace: int = GRACE_SECONDS) -> None:
    """The deletion of a pod was requested so many seconds ago. It has `grace` seconds to end."""
    times = {"deletionTimestamp": format_time(cluster.now - ago + grace), "deletionGracePeriodSeconds": grace}
    cluster.pods[name]["metadata"] |= times


@pytest.mark.parametrize("ago", [0, 2])
@pytest.mark.parametrize("phase", ["Failed", "Running"])
def test_pod_that_was_stopped_is_no_crash(phase: str, ago: float) -> None:
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, failed(cluster, phase=phase))
    delete_head(cluster, HEAD, ago)
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


@pytest.mark.parametrize("grace", [0, 1], ids=["the kubelet's last request", "a user's shorter period"])
@pytest.mark.parametrize("phase", ["Failed", "Running"])
def test_pod_whose_grace_period_was_shortened_is_no_crash(phase: str, grace: int) -> None:
    """The API server then moves the time of the deletion to now, after the containers have ended."""
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, failed(cluster, phase=phase))
    cluster.now += 3
    delete_head(cluster, HEAD, ago=0, grace=grace)
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")
    assert cluster.status["attempts"][0].get("message") is None


def test_helper_that_fails_while_the_pod_runs_is_no_crash() -> None:
    """A webhook has added a container to the pod, which does its work without it."""
    cluster, operator = running_job(**ONE_WORKER)
    helper = {**failed(cluster)["containerStatuses"][0], "name": "log-agent"}
    worker = cluster.pods["claims-triage-a1-worker"]["status"]
    worker["containerStatuses"] = [helper, {"name": "ray-worker", "state": {"running": {}}}]
    operator.settle()
    assert (cluster.status["phase"], stalled(cluster)) == ("Running", ("False", "NotBlocked"))


def with_gate(status: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The status of a head whose sidecar has this state."""
    return {**status, "initContainerStatuses": [{"name": "gate", "state": state}]}


GATE_RUNS: dict[str, Any] = {"running": {}}
GATE_KILLED = {"terminated": {"exitCode": 137, "reason": "Error"}}


def test_head_that_crashes_while_its_sidecar_runs_is_a_crash() -> None:
    """The kubelet reports such a pod as Running, and KubeRay deletes it at once. The job seemed to start for ever."""
    cluster, operator = starting_job()
    replace_head(cluster, "head-1", with_gate(failed(cluster, phase="Running"), GATE_RUNS))
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    assert "pod head-1: container ray-head ended with exit code 127 (Error)" in condition(cluster, "Stalled")["message"]


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
    assert "pod head-1: container ray-head ended with exit code 12" in condition(cluster, "Stalled")["message"]


def test_sidecar_that_the_kubelet_restarts_is_no_crash() -> None:
    cluster, operator = starting_job()
    replace_head(cluster, HEAD, with_gate(statuses.ready_pod(), GATE_KILLED))
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


def test_init_container_that_fails_is_a_crash() -> None:
    cluster, operator = starting_job()
    containers = failed(cluster)["containerStatuses"]
    waits = [{"name": "ray-head", "state": {"waiting": {"reason": "PodInitializing"}}}]
    replace_head(
        cluster,
        HEAD,
        {"phase": "Failed", "initContainerStatuses": [{**containers[0], "name": "issue"}], "containerStatuses": waits},
    )
    operator.settle()
    assert "container issue ended with exit code 127 (Error)" in condition(cluster, "Stalled")["message"]


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (f"Ms Jones\n{ISSUED}\n", f"{ISSUED}: {fixes.AUTHORITY}"),
        ("no certificate: TENSAFE_POD_IPS is empty", f"TENSAFE_POD_IPS is empty: {Reason.CRASH_LOOP.fix}"),
        ("python: no module named tensorguard, Ms Jones", f"code 127 (Error): {Reason.CRASH_LOOP.fix}"),
    ],
)
def test_pod_without_a_certificate_says_why(log: str, shown: str) -> None:
    """Such as where the issuer of cert-manager issues no authorities. Nothing else of the log is shown. An unsuitable
    image fails there, too.
    """
    cluster, operator = starting_job()
    container = {**failed(cluster)["containerStatuses"][0], "name": "certificate"}
    container["state"]["terminated"]["message"] = log
    replace_head(cluster, HEAD, {"phase": "Failed", "initContainerStatuses": [container]})
    operator.settle()
    message = condition(cluster, "Stalled")["message"]
    assert message.endswith(shown) and "Ms Jones" not in message


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "EvictionByEvictionAPI", "TerminationByKubelet"])
def test_pod_that_the_cluster_stops_is_no_crash(reason: str) -> None:
    """An eviction ends a pod before it is deleted: its containers end with an exit code, as after a crash."""
    cluster, operator = starting_job()
    condition_of_pod = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    replace_head(cluster, HEAD, failed(cluster, reason="Evicted", conditions=[condition_of_pod]))
    operator.settle()
    assert stalled(cluster) == ("False", "NotBlocked")


@pytest.mark.parametrize(
    ("message", "is_own"),
    [
        ('Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". ', True),
        ('Container ray-head exceeded its local ephemeral storage limit "1Gi". ', True),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ", True),
        ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ", False),
    ],
)
def test_pod_that_is_evicted_for_its_own_storage_is_a_crash(message: str, is_own: bool) -> None:
    """The next pod is evicted, too."""
    cluster, operator = starting_job()
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    replace_head(cluster, HEAD, failed(cluster, 600, reason="Evicted", message=message, conditions=[evicted]))
    operator.settle()
    if is_own:
        shown = condition(cluster, "Stalled")["message"]
        assert shown == f"pod {HEAD}: Evicted: {message.strip().rstrip('.')}: {fixes.STORAGE_LIMIT}"
    else:
        assert stalled(cluster) == ("False", "NotBlocked")


def test_pod_that_the_node_rejects_is_a_crash() -> None:
    cluster, operator = starting_job()
    rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU is healthy"}
    replace_head(cluster, HEAD, rejected)
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    assert f"pod {HEAD}: UnexpectedAdmissionError: no GPU is healthy" in condition(cluster, "Stalled")["message"]


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
