"""Which pods count as failed right after their start: KubeRay replaces them at once and without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from e2e.platform.fakes import statuses
from e2e.platform.fixtures.failed_pods import (
    HEAD,
    NO_BASH,
    ONE_WORKER,
    failed,
    replace_head,
    stalled,
    starting_job,
    unstarted,
)
from e2e.platform.fixtures.fake_cluster import FakeCluster, condition, running_job
from tensafe_api import fixes
from tensafe_api.reasons import Reason
from tensafe_api.timestamps import format_time
from tensafe_operator.children.rayjob import GRACE_SECONDS

ISSUED = "no certificate: cert-manager issued a certificate that may not issue others (isCA)"


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
    ("message", "fix"),
    [
        ('Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". ', fixes.VOLUME_LIMIT),
        ('Container ray-head exceeded its local ephemeral storage limit "1Gi". ', fixes.STORAGE_LIMIT),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ", fixes.STORAGE_LIMIT),
        ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ", ""),
    ],
)
def test_pod_that_is_evicted_for_its_own_storage_is_a_crash(message: str, fix: str) -> None:
    """The next pod is evicted, too. The operator sets no limit of ephemeral storage, but a LimitRange may."""
    cluster, operator = starting_job()
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    replace_head(cluster, HEAD, failed(cluster, 600, reason="Evicted", message=message, conditions=[evicted]))
    operator.settle()
    if fix:
        shown = condition(cluster, "Stalled")["message"]
        assert shown == f"pod {HEAD}: Evicted: {message.strip().rstrip('.')}: {fix}"
    else:
        assert stalled(cluster) == ("False", "NotBlocked")


def test_pod_that_the_node_rejects_is_a_crash() -> None:
    cluster, operator = starting_job()
    rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU is healthy"}
    replace_head(cluster, HEAD, rejected)
    operator.settle()
    assert stalled(cluster) == ("True", "CrashLoop")
    assert f"pod {HEAD}: UnexpectedAdmissionError: no GPU is healthy" in condition(cluster, "Stalled")["message"]
