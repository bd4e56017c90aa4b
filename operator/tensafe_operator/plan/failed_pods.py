"""Failed pods: remember how pods of the open attempt have failed, until the attempt ends.

KubeRay deletes a pod that is out of memory or was evicted, and creates another one. The attempt may fail much later:
the driver has lost a worker, or the workers make no progress. Its exit code names no pod, so the message of the open
attempt keeps each cause once, with the first pod that had it. A replaced pod with a known cause changes nothing.

Only what the kubelet, the container runtime and the control plane have written is kept: what a container writes may
quote records.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tensafe_api.clean_text import clean
from tensafe_api.resources.status import Attempt
from tensafe_operator.plan.attempts import Assessment, AttemptState
from tensafe_operator.plan.crashes import failed_containers, reason_of_pod
from tensafe_operator.plan.observed import Object, Observed
from tensafe_operator.plan.outdated import pods_of_open_attempt
from tensafe_operator.plan.parsing import pod_condition

_MOST = 3
_LONGEST = 200
_LONGEST_END = 700
"""A condition has room for it, for the number of the attempt and for the fix."""
_OUT_OF_MEMORY = "OOMKilled"
_BETWEEN = re.compile(r"; (?=pod \S+: )")
"""What separates the pods in a message."""


def remember_failed_pods(attempt: Attempt, observed: Observed) -> Attempt:
    """Return the status entry of an open attempt, with how its pods have failed as far as it can be seen now."""
    known = _remembered(attempt)
    for pod in pods_of_open_attempt(observed):
        cause = _cause_of(pod)
        if cause and len(known) < _MOST and not any(_is_known(cause, each) for each in known):
            known.append(f"pod {pod['metadata']['name']}: {clean(cause)[:_LONGEST].rstrip(' .:')}")
    return attempt.model_copy(update={"message": "; ".join(known)}) if known else attempt


def with_failed_pods(assessment: Assessment, attempt: Attempt) -> Assessment:
    """Return the assessment of an attempt that has failed, with how its pods failed before. That of an attempt that has
    ended otherwise is unchanged.
    """
    if assessment.state is not AttemptState.FAILED:
        return assessment
    message = assessment.message or assessment.reason.sentence
    others = [each for each in _remembered(attempt) if not _is_known(each.partition(": ")[2], message)]
    if not others:
        return assessment
    text = f"{message.rstrip('.')}; before that, {'; '.join(others)}"
    return replace(assessment, message=text[:_LONGEST_END])


def _remembered(attempt: Attempt) -> list[str]:
    return _BETWEEN.split(attempt.message)[:_MOST] if attempt.message else []


def _is_known(cause: str, text: str) -> bool:
    """Whether a text names a cause. The numbers in a kubelet's message differ from pod to pod."""
    return f": {cause.partition(': ')[0]}" in text


def _cause_of(pod: Object) -> str:
    """Why a pod has failed; empty where it has not. A pod that is deleted fails as well, because of the deletion."""
    is_deleted, status = bool(pod["metadata"].get("deletionTimestamp")), pod.get("status") or {}
    if not is_deleted and status.get("phase") != "Failed":
        return ""
    if status.get("reason"):
        return reason_of_pod(pod)
    ended = list(failed_containers(pod))
    if out_of_memory := [words for words, state in ended if state.get("reason") == _OUT_OF_MEMORY]:
        return out_of_memory[0]
    disruption = pod_condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        return f"{disruption.get('reason')}: {disruption.get('message') or ''}"
    return ended[0][0] if ended and not is_deleted else ""
