"""Failed pods: remember how pods of the open attempt have failed, until the attempt ends.

KubeRay deletes a pod that is out of memory or was evicted, and creates another one. The attempt may fail much later:
the driver has lost a worker, or the workers make no progress. Its exit code names no pod, so the message of the open
attempt keeps the first cause, and the newest two, one of which may have ended it. Each comes with the first pod that
had it. A replaced pod with a known cause changes nothing.

Only what the kubelet, the container runtime and the control plane have written is kept: what a container writes may
quote records.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tensafe_api.clean_text import clean
from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.attempts import Assessment, AttemptState
from tensafe_operator.plan.crashes import ended_by_deletion, failed_containers, is_failed, reason_of_pod
from tensafe_operator.plan.observed import Object, Observed
from tensafe_operator.plan.outdated import pods_of_open_attempt
from tensafe_operator.plan.parsing import object_condition

_NEWEST = 2
"""So many causes are kept beside the first one."""
_LONGEST = 200
_LONGEST_END = 700
"""A condition has room for it, for the number of the attempt and for the fix."""
_OUT_OF_MEMORY = "OOMKilled"
_GAP = "after other failures, "
"""Comes before the second pod where causes between the first one and it are no longer kept."""
_BETWEEN = re.compile(rf"; (?=(?:{_GAP})?pod \S+: )")
"""What separates the pods in a message."""
_POD = re.compile(r"\bpod \S+: ")
_VARIES = re.compile(r"\b(?:pod|node) \S+|[\w.+-]*\d[\w.+-]*", re.IGNORECASE)
"""What differs from pod to pod in messages about one cause: names, quantities and ids."""
_MAY_BE_EXPLAINED = (
    Reason.WORKER_LOST,
    Reason.NO_PROGRESS,
    Reason.AGGREGATION_FAILED,
    Reason.RESOURCES_MISSING,
    Reason.INTERNAL_ERROR,
    Reason.DEADLINE_EXCEEDED,
    Reason.START_DEADLINE_EXCEEDED,
)
"""Reasons of an end that a failed pod may have caused. The others name their own cause, such as a field or a model."""

_Kind = tuple[str, str]


def remember_failed_pods(attempt: Attempt, observed: Observed) -> Attempt:
    """Return the status entry of an open attempt, with how its pods have failed as far as it can be seen now: the first
    cause and the newest ones. Without a new cause it is unchanged, in whatever order the pods are seen.
    """
    known, seen = _remembered(attempt), _visible(observed)
    if seen.keys() <= known.keys():
        return attempt
    first = next(iter({**known, **seen}))
    later = [kind for kind in known if kind not in (first, *seen)] + [kind for kind in seen if kind != first]
    texts = {kind: text.removeprefix(_GAP) for kind, text in (seen | known).items()}
    kept = [texts[first], *(texts[kind] for kind in later[-_NEWEST:])]
    if len(later) > _NEWEST or _GAP in (attempt.message or ""):
        kept[1] = _GAP + kept[1]
    return attempt.model_copy(update={"message": "; ".join(kept)})


def with_failed_pods(assessment: Assessment, attempt: Attempt) -> Assessment:
    """Return the assessment of an attempt that has failed, with how its pods failed before, where that may be why. That
    of an attempt that has ended otherwise is unchanged.
    """
    if assessment.state is not AttemptState.FAILED or assessment.reason not in _MAY_BE_EXPLAINED:
        return assessment
    message = (assessment.message or assessment.reason.sentence).rstrip(".")
    named = {_kind(_short(each)) for each in _POD.split(message)}
    others = [text for kind, text in _remembered(attempt).items() if kind not in named]
    if not others:
        return assessment
    message, between = f"{message}; before that, ", "; "
    room = _LONGEST_END - len(message)
    if len(between.join(others)) > room:
        others = [each[: max(0, room // len(others) - len(between))] for each in others]
    return replace(assessment, message=(message + between.join(others))[:_LONGEST_END])


def _remembered(attempt: Attempt) -> dict[_Kind, str]:
    """The pods in the message of an open attempt, each with its cause, by the kind of the cause."""
    texts = _BETWEEN.split(attempt.message) if attempt.message else []
    return {_kind(text.partition(": ")[2]): text for text in texts}


def _visible(observed: Observed) -> dict[_Kind, str]:
    """The same for the pods that are there now: each kind with the first pod of it, the kind that failed last at the
    end.
    """
    found: dict[_Kind, str] = {}
    for pod in sorted(pods_of_open_attempt(observed), key=_end_of):
        if text := _short(_cause_of(pod)):
            kind = _kind(text)
            found[kind] = found.pop(kind, f"pod {pod['metadata']['name']}: {text}")
    return found


def _short(cause: str) -> str:
    """A cause as a message has it. It contains nothing that separates the pods there."""
    return _BETWEEN.sub(", ", clean(cause))[:_LONGEST].rstrip(" .:")


def _kind(cause: str) -> _Kind:
    """What two causes have in common that are one for a user: the reason, and what it is about.

    An eviction has the resource in its first sentence, and quantities in those that follow. A container that never
    started has the runtime's message, whose text may differ from pod to pod. Its name says no more than its exit code.
    """
    reason, _, message = cause.partition(": ")
    if message and reason.startswith("container "):
        return reason.split(" ", 2)[-1], ""
    return reason, _VARIES.sub("#", message.partition(". ")[0])


def _end_of(pod: Object) -> tuple[float, str]:
    """When a pod has failed, as far as its status says, and its name."""
    status = pod.get("status") or {}
    texts = [each.get("lastTransitionTime") for each in status.get("conditions") or ()]
    texts += [state.get("finishedAt") for _, state in failed_containers(pod)]
    return max(parse_time(text) or 0.0 for text in (None, *texts)), pod["metadata"]["name"]


def _cause_of(pod: Object) -> str:
    """Why a pod has failed; empty where it has not. A pod that is deleted fails as well, because of the deletion."""
    status, ended = pod.get("status") or {}, failed_containers(pod)
    if not (ended or is_failed(pod) or pod["metadata"].get("deletionTimestamp")):
        return ""
    if status.get("reason"):
        return reason_of_pod(pod)
    if out_of_memory := [words for words, state in ended if state.get("reason") == _OUT_OF_MEMORY]:
        return out_of_memory[0]
    disruption = object_condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        return f"{disruption.get('reason')}: {disruption.get('message') or ''}"
    return next((words for words, state in ended if not ended_by_deletion(pod, state)), "")
