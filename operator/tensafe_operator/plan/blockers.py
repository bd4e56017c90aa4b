"""Blockers: find what keeps the pods of an attempt from running, in the words of the component that refuses.

The first blocker that a user has to remove is reported: first missing policies and KubeRay, then what the API server
refuses, then what the pods wait for, a node last, because an autoscaler may add one. The job continues without another
step of the user once the blocker is removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensafe_api import fixes
from tensafe_api.clean_text import clean
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Status, WorkerCount
from tensafe_operator import names
from tensafe_operator.kinds import CORRECTED_KINDS
from tensafe_operator.plan.conditions import JobState, stalled_status
from tensafe_operator.plan.crashes import find_crash
from tensafe_operator.plan.observed import ClusterWarning, Object, Observed
from tensafe_operator.plan.outdated import REFUSED, current_warnings
from tensafe_operator.plan.parsing import IN_CREATION, has_condition, object_condition

POLL_SECONDS = 10.0
"""Polling interval for changes that no watch event reports."""
_NOT_SERVED = (
    "The API server does not serve RayJobs of ray.io/v1: KubeRay is not installed, is too old, or its CRD is being "
    "replaced. Running pods continue."
)
_NEVER_PULLED = "ErrImageNeverPull"
"""The node does not have the image, and `imagePullPolicy: Never` forbids to pull it."""
_UNSIGNED = "SignatureValidationFailed"
"""The container runtime requires a signature that the image does not have. While the kubelet backs off, the word is in
the message.
"""
_UNINSPECTED = "ImageInspectError"
_IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    _NEVER_PULLED,
    "RegistryUnavailable",
    _UNSIGNED,
    _UNINSPECTED,
)
_CONFIG_ERROR = "CreateContainerConfigError"
_HOOK_FAILED = "PostStartHookError"
"""Its message has what the hook wrote, which is never copied."""
_MISSING_OBJECT = re.compile(
    r'(secret|configmap)s? "[^"]{0,300}" not found|find key .{0,300}? in (Secret|ConfigMap)|references non-existent'
)
"""How a kubelet reports a Secret or ConfigMap that is missing or lacks a key: for a variable, and for a volume. A user
may write an Event of a megabyte, so what lies between two words is bounded.
"""
_ROOT_USER = re.compile("runAsNonRoot|non-root")
_QUOTA = re.compile("exceeded quota|failed quota")
"""How the API server reports a quota that has no room, or that counts a resource which a container does not set."""
_UNKNOWN_FIELD = re.compile(r'unknown field "(?P<path>[^"]*)"')
"""How the API server reports a field that an object's CRD does not have."""
_OF_AUTHOR = re.compile(r"\.(affinity|topologySpreadConstraints\b)")
"""The parts of a RayJob that its author writes without a schema."""
_FIXES_BY_CAUSE = {
    Reason.QUOTA_EXCEEDED: (
        (re.compile("requested: (count/(?!pods=)|secrets=|configmaps=|services[.=])"), fixes.QUOTA_OF_OBJECTS),
        (re.compile("requested: (count/)?pods=[0-9]+, used: "), fixes.QUOTA_OF_PODS),
    ),
    Reason.FORBIDDEN: (
        (re.compile('PriorityClass with name|RuntimeClass "'), fixes.CLASS),
        (re.compile("(maximum|minimum) .{0,300} usage per |limit to request ratio per "), fixes.LIMIT_RANGE),
        # Pods have no CPU limit of their own: it is the default of a LimitRange.
        (re.compile("must be less than or equal to [a-z-]{1,50} limit"), fixes.LIMIT_RANGE),
        (re.compile('Pod "[^"]{1,300}" is invalid: '), fixes.POD_FIELDS),
        # The API server checks types and required fields in the RayJob already, and the rest in the pods.
        (
            re.compile(r'^RayJob .{1,600}" is invalid: .{0,400}\.(affinity|topologySpreadConstraints)\b'),
            fixes.POD_FIELDS,
        ),
        (re.compile('^NetworkPolicy .{1,600}" is invalid: '), fixes.NETWORK_POLICY),
        (re.compile('^ConfigMap .{1,600}" is invalid: .{0,80}Too long: '), fixes.PARAMETERS_TOO_LARGE),
        (re.compile("^RayJob .{1,600}(request is too large|message larger than max)"), fixes.PARAMETERS_TOO_LARGE),
        (re.compile("^(NetworkPolicy|RoleBinding) .{1,300}: it was brought back "), fixes.CHANGED_BY_OTHERS),
        (re.compile("^Certificate .{0,300}(404 page not found|could not find the requested)"), fixes.CERT_MANAGER),
    ),
    Reason.CRASH_LOOP: (
        (re.compile("^pod [^ ]+: Evicted: Usage of EmptyDir "), fixes.VOLUME_LIMIT),
        (re.compile("^pod [^ ]+: Evicted: "), fixes.STORAGE_LIMIT),
        (re.compile(": container certificate .{1,80}: no certificate: .{0,60}cert-manager "), fixes.AUTHORITY),
    ),
    Reason.UNKNOWN_FIELD: ((re.compile(""), fixes.POD_FIELDS),),
    Reason.UNSCHEDULABLE: (
        (re.compile('persistentvolumeclaim "[^"]{1,300}" not found'), fixes.CLAIM_MISSING),
        (re.compile("unbound immediate PersistentVolumeClaims"), fixes.CLAIM_UNBOUND),
        (re.compile("Insufficient |Too many pods"), ""),
        (re.compile("node affinity/selector|untolerated taint|unschedulable"), fixes.PLACEMENT),
        (re.compile("pod group is not ready"), fixes.GANG),
    ),
}
"""How the API server and the scheduler name causes that the fix of their reason does not remove; the first one counts.
"""
_ACCOUNT_MISSING = re.compile(r'serviceaccount "[^"]{1,300}" not found')
_LONGEST = 400


@dataclass(frozen=True)
class Blocker:
    """What keeps an attempt from running.

    Attributes:
        message: a sentence that names the object.
        fix: what the user can do; empty: the fix of the reason.
    """

    reason: Reason
    message: str
    fix: str = ""


def find_blocker(observed: Observed) -> Blocker | None:
    """Return what keeps the pods from running, or None."""
    if not observed.guarded:
        return Blocker(Reason.GUARD_MISSING, Reason.GUARD_MISSING.sentence)
    if not observed.kuberay:
        return Blocker(Reason.KUBERAY_MISSING, _NOT_SERVED)
    found = sorted(_blockers(observed), key=lambda each: each.reason is Reason.UNSCHEDULABLE)
    blocker = next(iter(found), None)
    return blocker and replace(blocker, fix=_fix_of_cause(observed, blocker))


def starting_state(observed: Observed, phase: Phase) -> JobState:
    """Return the state of a job that starts: stalled where a blocker was found."""
    blocker = find_blocker(observed)
    return JobState(phase, Reason.STARTING) if blocker is None else blocked_state(blocker, phase)


def blocked_state(blocker: Blocker, phase: Phase) -> JobState:
    """Return the state of a job that this blocker stalls."""
    return JobState(phase, blocker.reason, _sentence(blocker), stalled=True)


def status_of_refusal(before: Mapping[str, Any], after: Status, refused: ClusterWarning, now: float) -> Status | None:
    """Return the status to write where the API server refused a deletion, with the condition Stalled set.

    The end of a job, and the deletion of a Secret, are not recorded before they have happened. A RayJob that is left is
    deleted later, and keeps the next attempt from starting: so the rest of the status is written.

    Args:
        before: the status of the job.
        after: the status that was decided with the deletion.

    Returns:
        None for a job that has ended.
    """
    blocker = next(_blockers_of_warning(refused))
    counted_on = refused.kind != "RayJob" or Phase(after.phase or Phase.PENDING).final
    return stalled_status(before, blocker.reason, _sentence(blocker), now, None if counted_on else after)


def is_correction_refused(observed: Observed) -> bool:
    """Return whether the API server refused to bring back an object of a running attempt."""
    return any(warning.kind in CORRECTED_KINDS for warning in observed.warnings)


def are_workers_blocked(observed: Observed, workers: WorkerCount | None) -> bool:
    """Return whether workers of a running attempt are missing and a blocker keeps them from starting again. Missing
    policies and a refused correction keep no pod of an attempt from starting.
    """
    missing = workers is not None and workers.ready < workers.desired
    warnings = tuple(each for each in observed.warnings if each.kind not in CORRECTED_KINDS)
    return missing and find_blocker(replace(observed, guarded=True, warnings=warnings)) is not None


def count_ready_workers(pods: Iterable[Object]) -> int:
    """Return how many worker pods are ready."""
    workers = (pod for pod in pods if (pod["metadata"].get("labels") or {}).get("ray.io/node-type") == "worker")
    return sum(has_condition(pod, "Ready") for pod in workers)


def _sentence(blocker: Blocker) -> str:
    """What blocks, and what to do. Users write some of the texts: the name of an image, the message of an Event."""
    return f"{clean(blocker.message).rstrip('.')}: {blocker.fix or blocker.reason.fix}"


def _fix_of_own_object(observed: Observed, message: str) -> str:
    """Return what a user can do where a Secret or ConfigMap that the operator created is missing: no user can create it
    again. Empty where the object is the user's.
    """
    metadata = observed.job["metadata"]
    if _is_named(names.key_prefix(metadata["name"], metadata["uid"]), message):
        return fixes.JOB_KEY
    for ray_job in observed.ray_jobs:
        annotations = ray_job["metadata"].get("annotations") or {}
        if _is_named(names.authority_name(annotations.get(names.TLS_SECRET, "")), message):
            return fixes.CERTIFICATE
        if _is_named(f"{ray_job['metadata']['name']}-", message):
            return fixes.OBJECT_OF_ATTEMPT
    return ""


def _is_named(start: str, message: str) -> bool:
    """Return whether the kubelet names an object that starts so. It writes `"NAME"`, or `NAMESPACE/NAME` for a key that
    is missing.
    """
    return f'"{start}' in message or f"/{start}" in message


def _fix_of_image(observed: Observed) -> str:
    """Return what a user can do where a node cannot pull an image that the manifest does not name: a default, or the
    digest that the job keeps. Empty for the image of the manifest.
    """
    own = (observed.job["spec"].get("cluster") or {}).get("image")
    kept = ((observed.job.get("status") or {}).get("resolved") or {}).get("image")
    if observed.ledger is not None and observed.ledger.get("status") and own != kept:
        return fixes.IMAGE_KEPT
    return "" if own else fixes.IMAGE_OF_CHART


def _fix_of_cause(observed: Observed, blocker: Blocker) -> str:
    """Return what a user can do where the fix of the reason does not help. Empty for other causes."""
    if blocker.reason is Reason.IMAGE_PULL_FAILED:
        if _UNSIGNED in blocker.message:
            return fixes.IMAGE_UNSIGNED
        never = blocker.message.endswith(f": {_NEVER_PULLED}")
        return fixes.IMAGE_NOT_LOADED if never else _fix_of_image(observed)
    if blocker.reason is Reason.SECRET_MISSING:
        return _fix_of_own_object(observed, blocker.message)
    if blocker.reason is Reason.FORBIDDEN and _ACCOUNT_MISSING.search(blocker.message):
        own = not (observed.job["spec"].get("cluster") or {}).get("serviceAccountName")
        return fixes.OBJECT_OF_ATTEMPT if own else fixes.SERVICE_ACCOUNT
    causes = _FIXES_BY_CAUSE.get(blocker.reason, ())
    return next((fix for pattern, fix in causes if pattern.search(blocker.message)), "")


def _blockers(observed: Observed) -> Iterator[Blocker]:
    for warning in current_warnings(observed):
        yield from _blockers_of_warning(warning)
    for pod in observed.pods:
        yield from _blockers_of_pod(pod)
    if crash := find_crash(observed):
        yield Blocker(Reason.CRASH_LOOP, crash)


def _blockers_of_warning(warning: ClusterWarning) -> Iterator[Blocker]:
    message = f"{warning.kind} {warning.name}: {warning.message[:_LONGEST]}"
    if warning.reason == "FailedMount" and _MISSING_OBJECT.search(warning.message):
        yield Blocker(Reason.SECRET_MISSING, message)
    elif unknown := _UNKNOWN_FIELD.findall(warning.message):
        of_author = all(_OF_AUTHOR.search(path) for path in unknown)
        release = "" if of_author else ", because KubeRay is too old"
        text = f"{warning.kind} {warning.name} cannot have {', '.join(unknown)}{release}"
        yield Blocker(Reason.UNKNOWN_FIELD if of_author else Reason.KUBERAY_MISSING, text[:_LONGEST])
    elif _QUOTA.search(warning.message):
        yield Blocker(Reason.QUOTA_EXCEEDED, message)
    elif warning.reason == Reason.NAME_TAKEN:
        yield Blocker(Reason.NAME_TAKEN, message)
    elif warning.reason == Reason.FORBIDDEN or warning.reason in REFUSED:
        yield Blocker(Reason.FORBIDDEN, message)


def _blockers_of_pod(pod: Object) -> Iterator[Blocker]:
    name = f"pod {pod['metadata']['name']}"
    status = pod.get("status") or {}
    placed = object_condition(pod, "PodScheduled")
    if placed.get("reason") == "Unschedulable":
        yield Blocker(Reason.UNSCHEDULABLE, f"{name}: {str(placed.get('message'))[:_LONGEST]}")
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in IN_CREATION:
            yield _blocker_of_container(name, container, waiting)


def _blocker_of_container(pod: str, container: Object, waiting: Object) -> Blocker:
    """What keeps a container of a pod from running. Each reason that is not one of a normal start is an error: the
    kubelet has more of them in each release, and tries again without end.
    """
    reason, message = str(waiting["reason"])[:_LONGEST], str(waiting.get("message") or "")[:_LONGEST]
    because = f": {message}" if message and reason != _HOOK_FAILED else ""
    if reason in _IMAGE_REASONS:
        said = because if reason == _UNINSPECTED or _UNSIGNED in f"{reason} {message}" else ""
        return Blocker(Reason.IMAGE_PULL_FAILED, f"{pod}: {container.get('image')}: {reason}{said}")
    if reason == _CONFIG_ERROR:
        return Blocker(_reason_of_config_error(message), f"{pod}: {message}")
    if reason == "CrashLoopBackOff":
        last = (container.get("lastState") or {}).get("terminated") or {}
        code = f", last with exit code {last['exitCode']} ({last.get('reason')})" if last.get("exitCode") else ""
        return Blocker(Reason.CRASH_LOOP, f"{pod}: container {container.get('name')} exits repeatedly{code}"[:_LONGEST])
    return Blocker(Reason.CONTAINER_REFUSED, f"{pod}: container {container.get('name')}: {reason}{because}")


def _reason_of_config_error(message: str) -> Reason:
    """Return why the kubelet cannot create a container from its pod's specification."""
    if _MISSING_OBJECT.search(message):
        return Reason.SECRET_MISSING
    return Reason.ROOT_IMAGE if _ROOT_USER.search(message) else Reason.CONTAINER_REFUSED
