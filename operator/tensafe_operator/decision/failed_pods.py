"""Failed pods: how the pods of the open attempt fail, and whether the pods that replace them will fail alike.

The containers of an attempt are never restarted (`restartPolicy: Never`), except sidecars. KubeRay deletes a pod whose
Ray container has ended and creates another one at once, without end and without a warning, so a failed pod is visible
for a moment only. So the attempt in the status lists how its pods have failed: the first cause, and the newest two. A
crash stays the job's blocker until the pods that replace it work.

Only words of the kubelet, the container runtime and the control plane are kept: what a container writes may quote
records.
"""

from __future__ import annotations

from dataclasses import replace

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt, FailedPod
from tensafe_api.sanitize import clean
from tensafe_api.timestamps import parse_time
from tensafe_operator.children.rayjob import GRACE_SECONDS, HEAD_CONTAINER, WORKER_CONTAINER
from tensafe_operator.decision.attempts import Assessment, AttemptState
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.observation import Object, Observed
from tensafe_operator.decision.parsing import are_all_ready, has_condition, object_condition, pods_of_open_attempt

CRASH_SECONDS = 120
"""A container that fails so soon after its start fails again in the next pod."""
_NEWEST = 2
"""So many causes are kept beside the first one."""
_LONGEST, _LONGEST_END = 200, 700
_MAY_BE_EXPLAINED = (
    *(Reason.WORKER_LOST, Reason.NO_PROGRESS, Reason.AGGREGATION_FAILED, Reason.RESOURCES_MISSING),
    *(Reason.INTERNAL_ERROR, Reason.DEADLINE_EXCEEDED, Reason.START_DEADLINE_EXCEEDED),
)
"""Reasons of an end that a failed pod may have caused. The others name their own cause, such as a field or a model."""


def find_crash(observed: Observed) -> Blocker | None:
    """Return the crash of a pod of the open attempt that is there, or None."""
    crashed = (failure_of(pod) for pod in pods_of_open_attempt(observed) if _is_crash(pod))
    return next((Blocker(Reason.CRASH_LOOP, f"pod {each.pod}", each.sentence) for each in crashed if each), None)


def last_crash(draft: Draft) -> Blocker | None:
    """Return the crash of a pod that is gone, until all pods of the attempt are ready or have lasted for longer than a
    crash takes. It is the same one for as long as pods crash, so that no status is written for each of them.
    """
    before, pods = Blocker.stored(draft.status.blocker), pods_of_open_attempt(draft.observed)
    if before is None or before.reason is not Reason.CRASH_LOOP or are_all_ready(draft.observed):
        return None
    if len(pods) <= int(draft.observed.job["spec"]["cluster"]["workers"]):
        return before  # KubeRay creates another one
    over = CRASH_SECONDS + max(parse_time(pod["metadata"].get("creationTimestamp")) or 0.0 for pod in pods)
    draft.wake_at(over)
    return before if draft.now < over else None


def remember_failed_pods(attempt: Attempt, observed: Observed) -> Attempt:
    """Return the status entry of an open attempt, with how its pods have failed as far as it can be seen now. Without a
    new cause it is unchanged, in whatever order the pods are seen.
    """
    known = {each.cause: each for each in attempt.failed_pods or ()}
    seen: dict[tuple[str, int | None], FailedPod] = {}
    pods = sorted(pods_of_open_attempt(observed), key=lambda pod: (last_change(pod), pod["metadata"]["name"]))
    for failure in map(failure_of, pods):
        if failure is not None:
            seen[failure.cause] = seen.pop(failure.cause, failure)  # the cause that came last at the end
    if seen.keys() <= known.keys():
        return attempt
    first = next(iter({**known, **seen}))
    later = [each for each in known if each not in (first, *seen)] + [each for each in seen if each != first]
    kept = tuple({**seen, **known}[each] for each in (first, *later[-_NEWEST:]))
    return attempt.model_copy(update={"failed_pods": kept})


def with_failed_pods(assessment: Assessment, attempt: Attempt) -> Assessment:
    """Return the assessment of an attempt that has failed, with how its pods failed before, where that may be why."""
    failed = attempt.failed_pods or ()
    if assessment.state is not AttemptState.FAILED or assessment.reason not in _MAY_BE_EXPLAINED or not failed:
        return assessment
    message = (assessment.message or assessment.reason.sentence).rstrip(".")
    before = "; ".join(f"pod {each.pod}: {each.sentence}" for each in failed)
    return replace(assessment, message=f"{message}; before that, {before}"[:_LONGEST_END])


def failure_of(pod: Object) -> FailedPod | None:
    """Return how a pod has failed; None where it has not, or only because it is deleted."""
    name, status, containers = pod["metadata"]["name"], pod.get("status") or {}, _failed_containers(pod)
    killed = [each for each in containers if _end(each).get("reason") == "OOMKilled"]
    disruption = object_condition(pod, "DisruptionTarget")
    is_over = bool(containers) or is_failed(pod) or bool(pod["metadata"].get("deletionTimestamp"))
    if is_over and status.get("reason"):
        return FailedPod(pod=name, reason=_bounded(status["reason"]), message=_bounded(status.get("message")) or None)
    if is_over and not killed and disruption.get("status") == "True":
        reason = _bounded(disruption.get("reason"))
        return FailedPod(pod=name, reason=reason, message=_bounded(disruption.get("message")) or None)
    ended = killed or [each for each in containers if not _ended_by_deletion(pod, _end(each))]
    return _failed_container(name, ended[0]) if ended else None


def last_change(pod: Object) -> float:
    """Return when a pod was created, or its status changed last, such as when it failed, in seconds since the epoch."""
    texts = [each.get("lastTransitionTime") for each in (pod.get("status") or {}).get("conditions") or ()]
    texts += [_end(each).get("finishedAt") for each in _failed_containers(pod)]
    return max(parse_time(text) or 0.0 for text in (pod["metadata"].get("creationTimestamp"), *texts))


def is_failed(pod: Object) -> bool:
    """Return whether all containers of a pod have ended, and one of them has failed, or its node has rejected it."""
    return (pod.get("status") or {}).get("phase") == "Failed"


def _is_crash(pod: Object) -> bool:
    """Whether the pod with which KubeRay replaces this one is likely to fail alike."""
    reason, ended = (pod.get("status") or {}).get("reason"), list(map(_end, _failed_containers(pod)))
    if has_condition(pod, "DisruptionTarget"):
        return False  # the cluster has ended it. An eviction for the pod's own usage has no such condition
    if any(_ran_shortly(each) and not _ended_by_deletion(pod, each) for each in ended):
        return True
    is_rejected = bool(reason) and not ended and not pod["metadata"].get("deletionTimestamp")
    return is_failed(pod) and (reason == "Evicted" or is_rejected)


def _ray_containers(pod: Object) -> list[Object]:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return [each for each in containers if each.get("name") in (HEAD_CONTAINER, WORKER_CONTAINER)]


def _failed_containers(pod: Object) -> list[Object]:
    """The containers that ended with another exit code than 0. While a pod runs, its Ray container alone counts. Init
    containers count only in a failed pod where no other container has failed: the kubelet restarts sidecars, and stops
    them last.
    """
    status = pod.get("status") or {}
    if not is_failed(pod):
        return [each for each in _ray_containers(pod) if _end(each).get("exitCode")]
    groups = (status.get("containerStatuses") or (), status.get("initContainerStatuses") or ())
    main, init = ([each for each in group if _end(each).get("exitCode")] for group in groups)
    return main or init


def _end(container: Object) -> Object:
    return (container.get("state") or {}).get("terminated") or {}


def _ended_by_deletion(pod: Object, ended: Object) -> bool:
    """Whether a container may have ended because its pod is deleted. A deletion is requested one grace period before
    its time. Where the period was shortened later, the first request is not known.
    """
    deletion, finished = parse_time(pod["metadata"].get("deletionTimestamp")), parse_time(ended.get("finishedAt"))
    shortened = pod["metadata"].get("deletionGracePeriodSeconds") != GRACE_SECONDS
    return deletion is not None and (shortened or finished is None or finished >= deletion - GRACE_SECONDS)


def _ran_shortly(ended: Object) -> bool:
    """Whether a container ended soon after its start. A kubelet that has not found it, as after a restart of the node,
    knows neither times nor code.
    """
    started, finished = parse_time(ended.get("startedAt")), parse_time(ended.get("finishedAt"))
    is_short = _never_started(ended) or started is None or finished is None or finished - started < CRASH_SECONDS
    return is_short and ended.get("reason") != "ContainerStatusUnknown"


def _never_started(ended: Object) -> bool:
    """Whether a node could not start a container: its runtime then reports the time zero, and why."""
    started = parse_time(ended.get("startedAt"))
    return started is not None and started <= 0


def _failed_container(pod: str, container: Object) -> FailedPod:
    ended = _end(container)
    message = _bounded(ended.get("message")) if _never_started(ended) else ""
    reason, code = _bounded(ended.get("reason")) or "Error", int(ended["exitCode"])
    return FailedPod(pod=pod, container=container["name"], reason=reason, exit_code=code, message=message or None)


def _bounded(text: object) -> str:
    return clean(text or "")[:_LONGEST].strip(" .")
