"""Crashes: find pods that fail right after their start, again and again.

The containers of an attempt are never restarted (`restartPolicy: Never`), except sidecars. KubeRay deletes a pod whose
Ray container has ended and creates another one at once, without end and without a warning, so a failed pod is visible
for a moment only. That is why a reported crash stays in the status until all pods are ready, or run for longer than a
crash takes, except those that have lost their node or find none. A sidecar, such as the gate in the head's pod, runs
longer than the others. So the pod's phase stays `Running` until the pod is being deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tensafe_api.reasons import ConditionType, Reason
from tensafe_api.resources.status import Condition
from tensafe_api.timestamps import parse_time
from tensafe_operator.children.rayjob import GRACE_SECONDS, HEAD_CONTAINER, WORKER_CONTAINER
from tensafe_operator.children.tls import CERTIFICATE_CONTAINER, NO_CERTIFICATE
from tensafe_operator.plan.conditions import JobState
from tensafe_operator.plan.draft import Draft
from tensafe_operator.plan.observed import Object, Observed
from tensafe_operator.plan.outdated import are_all_ready, pods_of_open_attempt
from tensafe_operator.plan.parsing import has_condition, reason_of_node

CRASH_SECONDS = 120
"""A container that fails so soon after its start fails again in the next pod."""
_NO_CRASHES = ("Preempting", "Preempted", "NodeShutdown", "Shutdown", "Terminated", "NodeLost")
"""Reasons of failed pods that another pod does not repeat."""
_EVICTED = "Evicted"
_OWN_USAGE = re.compile("exceed(s|ed) (the|its) .{0,60}limit")
"""How the kubelet says that a pod has used more storage than it may. It evicts the next one for the same reason."""
_NOT_FOUND = "ContainerStatusUnknown"
"""The kubelet has not found a container that ran, such as after a restart of its node. It knows neither times nor code.
"""
_LONGEST = 400


def find_crash(observed: Observed) -> str:
    """Return a sentence about a pod of the open attempt that has failed right after its start; empty without one."""
    sentences = (sentence for pod in pods_of_open_attempt(observed) for sentence in _crashes_of(pod))
    return next(sentences, "")


def failed_containers(pod: Object) -> list[tuple[str, Object]]:
    """Return how each container of a pod has ended that ended with another exit code than 0, in words, and its state.

    While a pod runs, its Ray container alone counts: the pod does its work without the others. Init containers count
    only in a failed pod where no other container has failed: the kubelet restarts sidecars, and stops them last.
    """
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    if not is_failed(pod):
        return list(_failed_of(each for each in containers if each.get("name") in (HEAD_CONTAINER, WORKER_CONTAINER)))
    return list(_failed_of(containers)) or list(_failed_of(status.get("initContainerStatuses") or ()))


def is_failed(pod: Object) -> bool:
    """Return whether all containers of a pod have ended, and one of them has failed, or its node has rejected it."""
    return (pod.get("status") or {}).get("phase") == "Failed"


def ended_by_deletion(pod: Object, ended: Object) -> bool:
    """Return whether a container may have ended because its pod is deleted. One that had ended before has not; but a
    node, which reports whole seconds, may have another clock than the API server.

    A deletion is requested one grace period before its time. Where the period was shortened later, as in the kubelet's
    last request, the time is that of the last request, and the first one is not known.
    """
    metadata = pod["metadata"]
    deletion, finished = parse_time(metadata.get("deletionTimestamp")), parse_time(ended.get("finishedAt"))
    if deletion is None:
        return False
    if metadata.get("deletionGracePeriodSeconds") != GRACE_SECONDS or finished is None:
        return True
    return finished >= deletion - GRACE_SECONDS


def reason_of_pod(pod: Object) -> str:
    """Return why the cluster has ended a pod, such as an eviction, with the kubelet's message."""
    status = pod["status"]
    return f"{status['reason']}: {str(status.get('message') or '')[:_LONGEST].strip()}"


def is_crashing(draft: Draft) -> bool:
    """Return whether the status reports a crash, and the pods have not shown since that it is over."""
    if _reported(draft) is None or are_all_ready(draft.observed):
        return False
    over = _crash_over_since(draft.observed)
    if over is not None and draft.now < over:
        draft.wake_at(over)
    return over is None or draft.now < over


def unless_crashing(draft: Draft, state: JobState) -> JobState:
    """Return `state`, or that of a job whose crash was reported before. Its message does not change with each pod."""
    before = _reported(draft)
    kept = {Reason.CRASH_LOOP}
    if not _all_wait_for_nodes(draft.observed):
        kept.add(Reason.UNSCHEDULABLE)  # one pod waits for a node, while each new one of another pod crashes
    if before is None or not is_crashing(draft) or (state.stalled and state.reason not in kept):
        return state
    return JobState(state.phase, Reason.CRASH_LOOP, before.message, stalled=True)


def _all_wait_for_nodes(observed: Observed) -> bool:
    """Return whether the scheduler has found no node for any pod of the open attempt that is not ready."""
    waiting = [pod for pod in pods_of_open_attempt(observed) if not has_condition(pod, "Ready")]
    return bool(waiting) and all(reason_of_node(pod) == Reason.UNSCHEDULABLE for pod in waiting)


def _crash_over_since(observed: Observed) -> float | None:
    """Return when the last pod that runs had run for longer than a crash takes, if each other one has lost its node or
    finds none, in seconds since the epoch. None: a pod is missing, or starts.
    """
    pods = pods_of_open_attempt(observed)
    if len(pods) <= int(observed.job["spec"]["cluster"]["workers"]):
        return None
    running = [_running_since(pod) for pod in pods if not _has_lost_node(pod)]
    times = [time for time in running if time is not None]
    return max(times) + CRASH_SECONDS if times and len(times) == len(running) else None


def _has_lost_node(pod: Object) -> bool:
    """Return whether a pod has lost its node, or finds none."""
    lost = bool(pod["metadata"].get("deletionTimestamp")) or has_condition(pod, "DisruptionTarget")
    return lost or reason_of_node(pod) == Reason.UNSCHEDULABLE


def _running_since(pod: Object) -> float | None:
    """Return when the Ray container of a pod has started that runs, in seconds since the epoch; None for another."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    states = (each.get("state") or {} for each in containers if each.get("name") in (HEAD_CONTAINER, WORKER_CONTAINER))
    return next((parse_time(state["running"].get("startedAt")) for state in states if state.get("running")), None)


def _crashes_of(pod: Object) -> Iterator[str]:
    ended, name = failed_containers(pod), f"pod {pod['metadata']['name']}"
    reason = (pod.get("status") or {}).get("reason")
    if reason == _EVICTED and _OWN_USAGE.search(reason_of_pod(pod)):
        yield f"{name}: {reason_of_pod(pod)}"
        return
    if reason in _NO_CRASHES or has_condition(pod, "DisruptionTarget"):
        return
    crashed = (words for words, state in ended if _ran_shortly(state) and not ended_by_deletion(pod, state))
    yield from (f"{name}: {words}" for words in crashed)
    if reason and not ended and is_failed(pod) and not pod["metadata"].get("deletionTimestamp"):
        yield f"{name}: {reason_of_pod(pod)}"


def _failed_of(containers: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    for container in containers:
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            name = container.get("name")
            why = _certificate_error(ended) if name == CERTIFICATE_CONTAINER else ""
            yield f"container {name} ended with exit code {ended['exitCode']}{_cause_of(ended)}{why}", ended


def _certificate_error(ended: Object) -> str:
    """Why a pod has no certificate, in the words of our own code, which reads no records."""
    lines = str(ended.get("message") or "").splitlines()
    return next((f": {line[:_LONGEST]}" for line in lines if line.startswith(NO_CERTIFICATE)), "")


def _cause_of(ended: Object) -> str:
    """The kubelet's reason. The message is added where it is the runtime's own, about a container that never started.
    Any other is what the container wrote, or the end of its log, and may quote records.
    """
    reason = f" ({ended['reason']})" if ended.get("reason") else ""
    message = str(ended.get("message") or "") if _never_started(ended) else ""
    return f"{reason}: {message[:_LONGEST]}" if message else reason


def _ran_shortly(ended: Object) -> bool:
    if ended.get("reason") == _NOT_FOUND:
        return False
    started, finished = parse_time(ended.get("startedAt")), parse_time(ended.get("finishedAt"))
    return _never_started(ended) or started is None or finished is None or finished - started < CRASH_SECONDS


def _never_started(ended: Object) -> bool:
    """Whether a node could not start a container: its runtime then reports the time zero. The creation of the pod is no
    measure, because it has the time of another clock.
    """
    started = parse_time(ended.get("startedAt"))
    return started is not None and started <= 0


def _reported(draft: Draft) -> Condition | None:
    kind, reason = ConditionType.STALLED.value, Reason.CRASH_LOOP.value
    found = (
        each for each in draft.status.conditions if (each.type, each.reason, each.status) == (kind, reason, "True")
    )
    return next(found, None)
