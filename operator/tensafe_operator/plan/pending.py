"""Pending: find the pod that waits for too long.

A volume that another pod holds, a network of pods that is not ready, and a scheduler or a queue that does not exist
leave a pod Pending for ever, without a known error. Pulling a large image takes long, too. It begins when the volumes
and the network are ready, and is not waited for here.

KubeRay lets a worker wait without end until it reaches the head. If the head is ready, the network keeps it away, or
the two do not accept each other's certificates.

A pod for which the scheduler finds no node may get one from an autoscaler. The job reports the reason at once, and is
stalled only if no node comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensafe_api import fixes
from tensafe_api.reasons import Reason
from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.blockers import Blocker, blocked_state
from tensafe_operator.plan.conditions import JobState
from tensafe_operator.plan.draft import Draft
from tensafe_operator.plan.ignored import has_waited, head_ready_since, last_change
from tensafe_operator.plan.observed import Object
from tensafe_operator.plan.outdated import pods_of_open_attempt
from tensafe_operator.plan.parsing import WAITS_FOR_HEAD, object_condition, reason_of_node, started_waiting_for_head

PENDING_SECONDS = 300
"""For how long a pod may wait for a node, and then for its volumes and its network."""
NODE_SECONDS = 600
"""For how long a pod for which the scheduler finds no node may wait for an autoscaler. Most machines with GPUs are
ready in less; Argo CD and kstatus report a stalled job as failed.
"""
_WAITS_FOR_GANG = ("Schedulable", "Undetermined")
"""Volcano's reasons for a pod for which there is a node, or may be one, and that waits for the rest of its gang."""
_LONGEST = 400


def unless_pending(draft: Draft, state: JobState) -> JobState:
    """Return `state`, or that of a job one of whose pods waits without a known error."""
    warnings = _last_warnings(draft)
    placed = {reason_of_node(pod) for pod in draft.observed.pods}
    looked_at = _WAITS_FOR_GANG if Reason.UNSCHEDULABLE in placed else ()
    waits = [_wait_of(pod, warnings) for pod in draft.observed.pods if reason_of_node(pod) not in looked_at]
    waits += _waits_for_head(draft)
    waiting = [(since, blocker) for since, blocker in waits if since is not None]
    changed = last_change(draft, state) if waiting else 0.0
    for since, blocker in waiting:
        if has_waited(draft, changed, since, PENDING_SECONDS):
            return blocked_state(blocker, state.phase)
    return state


def unless_node_may_come(draft: Draft, state: JobState) -> JobState:
    """Return `state`, or the same with `stalled` unset: while an autoscaler may still add a node for the pods. It adds
    none for a PersistentVolumeClaim that does not exist.
    """
    if state.reason is not Reason.UNSCHEDULABLE or state.message.endswith(fixes.CLAIM_MISSING):
        return state
    placed = (object_condition(pod, "PodScheduled") for pod in draft.observed.pods)
    refused = [each for each in placed if each.get("reason") == Reason.UNSCHEDULABLE]
    since = min((parse_time(each.get("lastTransitionTime")) or 0.0 for each in refused), default=0.0)
    changed = last_change(draft, state)
    return state if has_waited(draft, changed, since, NODE_SECONDS) else replace(state, stalled=False)


def _last_warnings(draft: Draft) -> Mapping[str, str]:
    """The last warning about each pod that has a node, by the pod's name."""
    about = (each for each in draft.observed.warnings if each.kind == "Pod" and each.reason != "FailedScheduling")
    return {each.name: f": {each.reason}: {each.message[:_LONGEST]}" for each in about}


def _wait_of(pod: Object, warnings: Mapping[str, str]) -> tuple[float | None, Blocker]:
    """Since when a pod waits, in seconds since the epoch (None where it does not), and for what."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    placed = object_condition(pod, "PodScheduled")
    if (
        status.get("phase") != "Pending"
        or pod["metadata"].get("deletionTimestamp")
        or placed.get("reason") == Reason.UNSCHEDULABLE  # the scheduler has looked, and `blockers` reports its answer
    ):
        return None, Blocker(Reason.STARTING, "")
    if placed.get("reason") == "SchedulingGated":
        text = f"pod {name}: its scheduling gates are not removed after {PENDING_SECONDS} s"
        return parse_time(pod["metadata"].get("creationTimestamp")), Blocker(Reason.UNSCHEDULABLE, text, fixes.GATES)
    if placed.get("reason") in _WAITS_FOR_GANG:
        text = f"pod {name}: waits for the rest of its gang after {PENDING_SECONDS} s{_because(placed)}"
        return parse_time(pod["metadata"].get("creationTimestamp")), Blocker(Reason.UNSCHEDULABLE, text, fixes.GANG)
    if placed.get("status") != "True":
        text = f"pod {name}: no scheduler has looked for a node in {PENDING_SECONDS} s{_because(placed)}"
        blocker = Blocker(Reason.UNSCHEDULABLE, text, fixes.SCHEDULER)
        return parse_time(pod["metadata"].get("creationTimestamp")), blocker
    if object_condition(pod, "PodReadyToStartContainers").get("status") != "False":
        return None, Blocker(Reason.STARTING, "")
    text = f"pod {name}: its volumes and network are not ready after {PENDING_SECONDS} s{warnings.get(name, '')}"
    return parse_time(placed.get("lastTransitionTime")), Blocker(Reason.CONTAINER_REFUSED, text)


def _waits_for_head(draft: Draft) -> list[tuple[float | None, Blocker]]:
    """The waits of workers for a head that is ready, as `_wait_of` returns them."""
    pods = [pod for pod in pods_of_open_attempt(draft.observed) if not pod["metadata"].get("deletionTimestamp")]
    ready = head_ready_since(pods)
    waits: list[tuple[float | None, Blocker]] = []
    for pod in pods:
        started = started_waiting_for_head(pod)
        if ready is not None and started is not None:
            what = f"its container {WAITS_FOR_HEAD} has not reached the head, which is ready, in {PENDING_SECONDS} s"
            text = f"pod {pod['metadata']['name']}: {what}"
            waits.append((max(started, ready), Blocker(Reason.NOT_SUBMITTED, text, fixes.HEAD_NOT_REACHED)))
    return waits


def _because(condition: Mapping[str, Any]) -> str:
    reason = condition.get("reason")
    return f" ({reason})" if reason else ""
