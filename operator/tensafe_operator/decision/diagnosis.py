"""Diagnosis: what keeps the pods of an attempt from running, and whether a user has to act.

It is one of these, in this order; the first one is reported, in the words of the component that refuses or waits:

1. KubeRay is not installed.
2. The API server, or a kubelet, refuses an object: for a quota, a policy, a Secret that is missing, an image.
3. A pod fails right after its start, again and again (`failed_pods`).
4. KubeRay does nothing with a RayJob, although the next step is its own.
5. A pod waits for too long: for its volumes and its network, or for a scheduler with its gang and gates.
6. The scheduler finds no node for a pod. It is reported at once, but an autoscaler may add a node: a user has to act
   only after NODE_SECONDS.

A job that a queue holds back is not blocked (`attempts.is_queued`). The job continues without another step of the user
once the cause is removed. `kubectl tensafe explain` knows more about single causes, and about queues.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tensafe_api.fixes import Fix
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import parse_time
from tensafe_operator import names
from tensafe_operator.decision.attempts import is_queued
from tensafe_operator.decision.blockers import LONGEST, Blocker
from tensafe_operator.decision.conditions import JobState, blocked_state, set_conditions
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.failed_pods import find_crash, last_change, last_crash
from tensafe_operator.decision.observation import ClusterWarning, Object, Observed
from tensafe_operator.decision.parsing import (
    has_condition,
    has_ended,
    is_terminal,
    object_condition,
    pods_of_open_attempt,
    reason_of_node,
)

POLL_SECONDS = 10.0
"""Polling interval for changes that no watch event reports."""
KUBERAY_SECONDS = 120
"""For how long KubeRay may do nothing with a RayJob."""
PENDING_SECONDS = 300
"""For how long a pod may wait for a scheduler, and then for its volumes and its network."""
NODE_SECONDS = 600
"""For how long a pod for which the scheduler finds no node may wait for an autoscaler. Most machines with GPUs are
ready in less; Argo CD and kstatus report a stalled job as failed.
"""
_NOT_SERVED = (
    "The API server does not serve RayJobs of ray.io/v1: KubeRay is not installed, is too old, or its CRD is being "
    "replaced. Running pods continue"
)
_NOT_CREATED = ("FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedToCreateRayCluster", "FailedToCreateService")
"""Reasons of KubeRay's Events on its requests that the API server refuses."""
_EXISTS = "already exists"
"""How the API server refuses to create an object twice. KubeRay tries that while its cache lacks the new object."""
_IN_CREATION = (None, "ContainerCreating", "PodInitializing")
_IMAGE_REASONS = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
    *("SignatureValidationFailed", "ImageInspectError"),
)
_MISSING_OBJECT = re.compile(
    r'(secret|configmap)s? "[^"]*" not found|find key .* in (Secret|ConfigMap)|references non-existent'
)
"""How a kubelet reports a Secret or ConfigMap that is missing or lacks a key: for a variable, and for a volume."""
_HOOK_FAILED = "PostStartHookError"
"""Its message has what the hook wrote, which is never copied."""


def find_blocker(observed: Observed) -> Blocker | None:
    """Return what keeps the pods from running, as far as it needs no time to know; or None."""
    return _find_refusal(observed) or find_crash(observed) or _find_unplaced(observed)


def starting_state(observed: Observed, phase: Phase) -> JobState:
    """Return the state of a job that starts: stalled where a blocker was found."""
    blocker = find_blocker(observed)
    return JobState(phase, Reason.STARTING) if blocker is None else blocked_state(blocker, phase)


def diagnose(draft: Draft, phase: Phase) -> JobState | None:
    """Return the state of a job whose pods are not all ready: what keeps them from running; None if nothing does."""
    observed = draft.observed
    found = _find_refusal(observed) or last_crash(draft) or find_crash(observed)
    found = found or find_unanswered(draft) or _find_pending(draft)
    if found is not None:
        return blocked_state(found, phase)
    unplaced = _find_unplaced(observed)
    if unplaced is None:
        return None
    placed = (object_condition(pod, "PodScheduled") for pod in observed.pods)
    times = (each.get("lastTransitionTime") for each in placed if each.get("reason") == Reason.UNSCHEDULABLE)
    since = min(parse_time(time) or 0.0 for time in times)
    return blocked_state(unplaced, phase, stalled=_has_passed(draft, since, NODE_SECONDS))


def status_of_refusal(job: Object, after: Status, refused: ClusterWarning, now: float) -> Status:
    """Return the status to write where the API server refused an action of a decision: `after`, and stalled. That the
    key was deleted is not recorded before it has happened.

    Args:
        job: as it was observed.
        after: the status that was decided.
    """
    stored = Status.model_validate(job.get("status") or {}, by_alias=True, by_name=False)
    status = after.model_copy(update={"key_deleted": stored.key_deleted})
    phase = Phase(after.phase or Phase.PENDING)
    if not phase.final:
        blocker = _refusal_of_warning(refused)
        assert blocker is not None, "each refusal is a blocker"
        status.conditions = stored.conditions  # for their transition times
        set_conditions(status, blocked_state(blocker, phase), now)
    return status


def find_unanswered(draft: Draft) -> Blocker | None:
    """Return the RayJob with which KubeRay does nothing, or None. KubeRay's operator may not run, may watch other
    namespaces, or cannot reach the head. The RayJob then stays in the state that it has.
    """
    waits = (_wait_for_kuberay(draft, each) for each in draft.observed.ray_jobs)
    late = (blocker for since, blocker in filter(None, waits) if _has_passed(draft, since, KUBERAY_SECONDS))
    return next(late, None)


def _has_passed(draft: Draft, since: float, seconds: float) -> bool:
    """Whether so many seconds have passed. If not, the job is reconciled again when they have."""
    if draft.now < since + seconds:
        draft.wake_at(since + seconds)
    return draft.now >= since + seconds


def _find_refusal(observed: Observed) -> Blocker | None:
    if not observed.kuberay:
        return Blocker(Reason.KUBERAY_MISSING, "", _NOT_SERVED)
    of_warnings = map(_refusal_of_warning, _current_warnings(observed))
    of_pods = (blocker for pod in observed.pods for blocker in _refusals_of_pod(pod))
    return next(filter(None, of_warnings), None) or next(of_pods, None)


def _current_warnings(observed: Observed) -> Iterator[ClusterWarning]:
    """The warnings whose cause may last. An Event stays for an hour: it is over once its pod has started, or once
    KubeRay has created a pod after it; and it says nothing about a later attempt.
    """
    started = {pod["metadata"]["name"] for pod in observed.pods if (pod.get("status") or {}).get("phase") != "Pending"}
    times = [parse_time(pod["metadata"].get("creationTimestamp")) for pod in pods_of_open_attempt(observed)]
    created = max((time for time in times if time is not None), default=-math.inf)
    attempts = (observed.job.get("status") or {}).get("attempts") or ()
    ended = {each.get(field) for each in attempts if each.get("endTime") for field in ("rayJobName", "rayClusterName")}
    for warning in observed.warnings:
        if warning.kind == "Pod":
            is_over = warning.name in started
        else:
            is_late = warning.time is not None and warning.time < created
            is_over = warning.name in ended or (is_late and warning.kind in ("RayJob", "RayCluster"))
        if not is_over:
            yield warning


def _refusal_of_warning(warning: ClusterWarning) -> Blocker | None:
    about, text = f"{warning.kind} {warning.name}", warning.message[:LONGEST]
    if warning.reason == "FailedMount" and _MISSING_OBJECT.search(text):
        return Blocker(Reason.SECRET_MISSING, about, text)
    if "exceeded quota" in text or "failed quota" in text:
        return Blocker(Reason.QUOTA_EXCEEDED, about, text)
    if "strict decoding error: unknown field" in text:
        return Blocker(Reason.UNKNOWN_FIELD, about, text, Fix.KUBERAY_FIELD)
    if warning.reason == Reason.NAME_TAKEN:
        return Blocker(Reason.NAME_TAKEN, about, text)
    refused = warning.reason in _NOT_CREATED and _EXISTS not in text
    return Blocker(Reason.FORBIDDEN, about, text) if refused or warning.reason == Reason.FORBIDDEN else None


def _refusals_of_pod(pod: Object) -> Iterator[Blocker]:
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in _IN_CREATION:
            yield _refusal_of_container(f"pod {pod['metadata']['name']}", container, waiting)


def _refusal_of_container(pod: str, container: Object, waiting: Object) -> Blocker:
    """What keeps a container of a pod from running. Each reason that is not one of a normal start is an error: the
    kubelet has more of them in each release, and tries again without end.
    """
    reason, text = str(waiting["reason"])[:LONGEST], str(waiting.get("message") or "")[:LONGEST]
    why = f"{reason}: {text}" if text and reason != _HOOK_FAILED else reason
    if reason in _IMAGE_REASONS:
        return Blocker(Reason.IMAGE_PULL_FAILED, pod, f"{str(container.get('image'))[:LONGEST]}: {why}")
    if reason == "CreateContainerConfigError" and _MISSING_OBJECT.search(text):
        return Blocker(Reason.SECRET_MISSING, pod, text)
    if reason == "CreateContainerConfigError" and ("runAsNonRoot" in text or "non-root" in text):
        return Blocker(Reason.ROOT_IMAGE, pod, text)
    if reason == "CrashLoopBackOff":
        last = (container.get("lastState") or {}).get("terminated") or {}
        code = f", last with exit code {last['exitCode']} ({last.get('reason')})" if last.get("exitCode") else ""
        return Blocker(Reason.CRASH_LOOP, pod, f"container {container.get('name')} exits repeatedly{code}")
    return Blocker(Reason.CONTAINER_REFUSED, pod, f"container {container.get('name')}: {why}")


def _wait_for_kuberay(draft: Draft, ray_job: Object) -> tuple[float, Blocker] | None:
    """Since when KubeRay has to act on a RayJob, in seconds since the epoch, and what it has not done; None where the
    next step is that of another component.
    """
    metadata, status = ray_job["metadata"], ray_job.get("status") or {}
    about = f"RayJob {metadata['name']}"
    if metadata.get("deletionTimestamp"):
        since = parse_time(metadata["deletionTimestamp"]) or 0.0
        return since, Blocker(Reason.KUBERAY_MISSING, about, "it is deleted, and keeps a finalizer", Fix.FINALIZER)
    own = [each for each in draft.status.attempts if each.end_time is None and each.ray_job_name == metadata["name"]]
    if not own or is_terminal(ray_job) or is_queued(ray_job) or _is_submitted(ray_job):
        return None
    if status.get("jobDeploymentStatus") in ("Initializing", "Running"):
        return _wait_for_submission(draft, about, status)
    if status or own[0].ray_cluster_name:
        return None  # KubeRay has answered, and the RayJob has been in a queue since
    since = (parse_time(metadata.get("creationTimestamp")) or 0.0) + (own[0].queued_seconds or 0)
    return since, Blocker(Reason.KUBERAY_MISSING, about, "KubeRay has given it no status")


def _wait_for_submission(draft: Draft, about: str, status: Object) -> tuple[float, Blocker] | None:
    everyone = pods_of_open_attempt(draft.observed)
    pods = [pod for pod in everyone if not has_ended(pod)]
    if not pods:
        since = max([parse_time(status.get("startTime")) or 0.0, *map(last_change, everyone)])
        return since, Blocker(Reason.KUBERAY_MISSING, about, "KubeRay creates no pods for it")
    heads = (pod for pod in pods if pod["metadata"]["labels"].get(names.RAY_NODE_TYPE) == "head")
    ready = [object_condition(pod, "Ready") for pod in heads if has_condition(pod, "Ready")]
    deleted = any(pod["metadata"].get("deletionTimestamp") for pod in pods)
    if deleted or not ready or status["jobDeploymentStatus"] != "Running":
        return None
    why = "its head is ready, and KubeRay does not submit the job: it does not run, or cannot reach the head"
    return parse_time(ready[0].get("lastTransitionTime")) or 0.0, Blocker(Reason.NOT_SUBMITTED, about, why)


def _is_submitted(ray_job: Object) -> bool:
    """Whether KubeRay has submitted the job to Ray: from then on it reports Ray's status of the job."""
    status = ray_job.get("status") or {}
    return bool(status.get("jobStatus") or (status.get("rayJobInfo") or {}).get("startTime"))


def _find_pending(draft: Draft) -> Blocker | None:
    """The pod that waits for its volumes and its network, or for a scheduler. A large image is pulled after that. A
    gang waits for its pod for which the scheduler finds no node.
    """
    of_pods = (each for each in draft.observed.warnings if each.kind == "Pod" and each.reason != "FailedScheduling")
    warnings = {each.name: f": {each.reason}: {each.message}" for each in of_pods}
    gang_waits = _find_unplaced(draft.observed) is not None
    for pod in filter(_is_pending, draft.observed.pods):
        placed, about = object_condition(pod, "PodScheduled"), f"pod {pod['metadata']['name']}"
        if placed.get("status") == "True":
            unprepared = object_condition(pod, "PodReadyToStartContainers").get("status") == "False"
            since = parse_time(placed.get("lastTransitionTime")) or 0.0
            why = warnings.get(pod["metadata"]["name"], "")[:LONGEST]
            text = f"its volumes and network are not ready after {PENDING_SECONDS} s{why}"
            blocker = Blocker(Reason.CONTAINER_REFUSED, about, text)
        else:
            unprepared = not gang_waits
            since = parse_time(pod["metadata"].get("creationTimestamp")) or 0.0
            why = ": ".join(str(placed[key])[:LONGEST] for key in ("reason", "message") if placed.get(key))
            text = f"it waits for its scheduler after {PENDING_SECONDS} s ({why or 'which reports nothing'})"
            blocker = Blocker(Reason.UNSCHEDULABLE, about, text, Fix.SCHEDULER)
        if unprepared and _has_passed(draft, since, PENDING_SECONDS):
            return blocker
    return None


def _find_unplaced(observed: Observed) -> Blocker | None:
    """The pod for which the scheduler has found no node."""
    unplaced = (pod for pod in observed.pods if reason_of_node(pod) == Reason.UNSCHEDULABLE)
    for pod in unplaced:
        message = str(object_condition(pod, "PodScheduled").get("message"))[:LONGEST]
        return Blocker(Reason.UNSCHEDULABLE, f"pod {pod['metadata']['name']}", message)
    return None


def _is_pending(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Pending" and not pod["metadata"].get("deletionTimestamp")
