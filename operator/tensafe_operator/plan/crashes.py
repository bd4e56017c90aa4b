"""Crashes: find pods that fail right after their start, again and again.

The containers of an attempt are never restarted (`restartPolicy: Never`). KubeRay deletes a failed pod and creates
another one at once, without end and without a warning, so a failed pod is visible for a moment only. That is why a
reported crash stays in the status until all pods are ready.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensafe_api.reasons import ConditionType, Reason
from tensafe_api.resources.status import Condition
from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.conditions import JobState
from tensafe_operator.plan.draft import Draft
from tensafe_operator.plan.observed import Object, Observed
from tensafe_operator.plan.outdated import are_all_ready, pods_of_open_attempt
from tensafe_operator.plan.parsing import has_condition

CRASH_SECONDS = 120
"""A container that fails so soon after its start fails again in the next pod."""
_NO_CRASHES = ("Preempting", "Preempted", "NodeShutdown", "Shutdown", "Terminated", "NodeLost")
"""Reasons of failed pods that another pod does not repeat."""
_NOT_FOUND = "ContainerStatusUnknown"
"""The kubelet has not found a container that ran, such as after a restart of its node. It knows neither times nor code.
"""
_LONGEST = 400


def find_crash(observed: Observed) -> str:
    """Return a sentence about a pod of the open attempt that has failed right after its start; empty without one."""
    pods = (pod for pod in pods_of_open_attempt(observed) if not _was_stopped(pod))
    failed = (pod for pod in pods if (pod.get("status") or {}).get("phase") == "Failed")
    return next((sentence for pod in failed for sentence in _crashes_of(pod)), "")


def failed_containers(pod: Object) -> Iterator[tuple[str, Object]]:
    """Yield how each container of a pod has ended that ended with another exit code than 0, in words, and its state."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            yield f"container {container.get('name')} ended with exit code {ended['exitCode']}{_cause_of(ended)}", ended


def reason_of_pod(pod: Object) -> str:
    """Return why the cluster has ended a pod, such as an eviction, with the kubelet's message."""
    status = pod["status"]
    return f"{status['reason']}: {str(status.get('message') or '')[:_LONGEST]}"


def is_crashing(draft: Draft) -> bool:
    """Return whether the status reports a crash, and not all pods have become ready since."""
    return _reported(draft) is not None and not are_all_ready(draft.observed)


def unless_crashing(draft: Draft, state: JobState) -> JobState:
    """Return `state`, or that of a job whose crash was reported before. Its message does not change with each pod."""
    before = _reported(draft)
    if before is None or not is_crashing(draft) or (state.stalled and state.reason is not Reason.CRASH_LOOP):
        return state
    return JobState(state.phase, Reason.CRASH_LOOP, before.message, stalled=True)


def _was_stopped(pod: Object) -> bool:
    """Whether a pod is being deleted, or was ended for a reason of the cluster: an eviction, or the end of its node."""
    return bool(pod["metadata"].get("deletionTimestamp")) or has_condition(pod, "DisruptionTarget")


def _crashes_of(pod: Object) -> Iterator[str]:
    ended, reason, name = list(failed_containers(pod)), pod["status"].get("reason"), f"pod {pod['metadata']['name']}"
    if reason in _NO_CRASHES:
        return
    yield from (f"{name}: {words}" for words, state in ended if _ran_shortly(state))
    if not ended and reason:
        yield f"{name}: {reason_of_pod(pod)}"


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
