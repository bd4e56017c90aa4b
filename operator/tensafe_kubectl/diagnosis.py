"""Diagnoses a job: why is it not running, and what is there to do? Pure: what was read comes in, sentences go out.

The operator has found the reason of most problems, and its words come first. What the caller sees of pods, Events and
queues is listed as evidence. Where no operator has written a reason, the pods and the Events are searched with the
operator's own rules, so that both give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.job import KIND
from tensafe_api.timestamps import parse_time
from tensafe_kubectl import screen
from tensafe_kubectl.api import Object
from tensafe_kubectl.hints import find_hint
from tensafe_kubectl.reading import event_time, part
from tensafe_kubectl.terminal import cut
from tensafe_operator import names

PATIENCE_SECONDS = 30.0
"""An operator that runs sees a new job within this time."""
_QUIET_SECONDS = 300.0
"""Without a step for so long, a running job is worth a look."""
_WARNINGS = 5
_FIX_OF_NOT_SEEN = (
    "Check that an operator runs and manages this namespace: `kubectl -n tensafe-system get pods`, `kubectl -n "
    "tensafe-system logs -l app.kubernetes.io/name=tensafe-operator --tail=-1 --prefix`, and the chart's value "
    "`namespaces`."
)
_FIX_OF_QUEUED = (
    "Wait, or free room in the queue that spec.cluster.queueName names: `kubectl get localqueues,clusterqueues` shows "
    "how full the queues are."
)
_FIX_OF_INADMISSIBLE = (
    "Create or start the queue that Kueue names; the job then starts without further action. Or suspend the job, "
    "correct queueName in spec.cluster or its profile, and set spec.suspend to false."
)
_FIX_OF_INACTIVE = (
    "Fix what Kueue reports, then set spec.active of Workload {} to true. Or suspend the job and resume it: its next "
    "attempt has another Workload."
)
_FIX_OF_NO_WORKLOAD = (
    "Check that Kueue runs, and that its configuration has the integration ray.io/rayjob for this namespace. Or "
    "suspend the job, remove queueName from spec.cluster or its profile, and set spec.suspend to false."
)


@dataclass(frozen=True)
class Seen:
    """What was read about a job. None: it does not exist, or the caller may not read it.

    Attributes:
        no_workload: whether Kueue has no Workload for the RayJob that waits in a queue.
    """

    job: Object
    pods: Sequence[Object] | None = None
    warnings: Sequence[Object] | None = None
    ray_job: Object | None = None
    workload: Object | None = None
    no_workload: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """Why a job is in its state.

    Attributes:
        reason: one word: a `Reason`, or one of an operator that is newer than this plugin.
        what: what happened, in one sentence or more.
        fix: what to do; empty where no action is needed.
        evidence: what was seen of pods, queues and Events, one sentence each.
        by_operator: False where this plugin found the reason and no operator has written it.
    """

    reason: str
    what: str
    fix: str
    evidence: list[str] = field(default_factory=list)
    by_operator: bool = True


def diagnose(seen: Seen, now: float) -> Diagnosis:
    """The diagnosis of a job at a time (seconds since the epoch)."""
    found = _state(seen, now)
    return Diagnosis(found.reason, found.what, found.fix, [*_evidence(seen, now)], found.by_operator)


def _state(seen: Seen, now: float) -> Diagnosis:
    job, phase = seen.job, screen.phase_of(seen.job)
    if deletion := part(job, "metadata.deletionTimestamp"):
        return _deletion(deletion, part(job, "metadata.finalizers") or ())
    if not screen.is_final(job) and (refused := _refused_status(seen)) is not None:
        return refused
    change = "" if screen.is_final(job) else _unseen_change(seen, now)
    if phase == screen.NOT_SEEN:
        created = parse_time(part(job, "metadata.creationTimestamp"))
        if created is not None and now - created < PATIENCE_SECONDS:
            return Diagnosis("New", "The job was created just now, and the operator has not seen it yet.", "Wait.")
        return Diagnosis("NotSeen", "No operator has seen this job.", _FIX_OF_NOT_SEEN, by_operator=False)
    if change:
        return Diagnosis("NotSeen", f"No operator has seen that {change}.", _FIX_OF_NOT_SEEN, by_operator=False)
    word, message = screen.state_of(job)
    if phase == Phase.QUEUED and not screen.is_blocked(job):
        return _wait_in_queue(seen, now, word, message or Reason.QUEUED.sentence)
    reason = Reason.named(word)
    is_explained = screen.is_blocked(job) or (reason is not None and reason.fix)
    if not is_explained and phase in (Phase.PENDING, Phase.STARTING) and (blocker := _blocker(seen)) is not None:
        return blocker
    if reason is None:
        return Diagnosis(word, message, "This plugin does not know the reason: its version is older than the operator.")
    if phase == Phase.SUSPENDED and not screen.is_blocked(job):
        resume = f"kubectl tensafe resume {job['metadata']['name']} -n {job['metadata']['namespace']}"
        return Diagnosis(word, message or reason.sentence, f"{reason.fix} `{resume}` does this.")
    detail, fix = screen.cause_of(job)
    what = detail if reason.sentence.rstrip(".") in detail else f"{reason.sentence} {detail}".rstrip()
    return Diagnosis(word, what, find_hint(reason, detail) or fix)


def _deletion(since: str, finalizers: Sequence[str]) -> Diagnosis:
    """What a job waits for that was deleted. No other phase follows."""
    kept = f"It stays until its finalizers are removed: {', '.join(finalizers)}."
    what = f"The job is being deleted since {since}. {kept}"
    fix = (
        "Wait for the components that have set these finalizers. foregroundDeletion waits for the job's objects. "
        "Remove the finalizer of a component that is gone: `kubectl edit` the job. Its ledger stays."
    )
    return Diagnosis("Deleting", cut(what), fix, by_operator=False)


def _wait_in_queue(seen: Seen, now: float, word: str, waits: str) -> Diagnosis:
    """Why the RayJob of a job waits: `waits` is what the operator says."""
    if seen.ray_job is None:
        return Diagnosis(word, waits, _FIX_OF_QUEUED)
    metadata = seen.ray_job["metadata"]
    name, has_queue = metadata["name"], names.QUEUE in (metadata.get("labels") or {})
    # Kueue may also manage RayJobs without a queue: these have a Workload.
    if part(seen.ray_job, "spec.suspend") and not has_queue and seen.workload is None:
        what = f"RayJob {name} is suspended, and its job names no queue: someone has suspended it."
        return Diagnosis(word, what, f"Set spec.suspend of RayJob {name} to false.", by_operator=False)
    if seen.no_workload and now - (parse_time(metadata.get("creationTimestamp")) or now) >= PATIENCE_SECONDS:
        what = f"{waits} Kueue has no Workload for RayJob {name}."
        return Diagnosis(word, what, _FIX_OF_NO_WORKLOAD, by_operator=False)
    if part(seen.workload, "spec.active") is False:
        workload = part(seen.workload, "metadata.name")
        what = f"{waits} Workload {workload} is deactivated, so Kueue does not admit it, whatever room the queue has."
        return Diagnosis(word, what, _FIX_OF_INACTIVE.format(workload), by_operator=False)
    conditions = part(seen.workload, "status.conditions") or ()
    refused = (each for each in conditions if (each.get("type"), each.get("status")) == ("QuotaReserved", "False"))
    if any(each.get("reason") == "Inadmissible" for each in refused):
        what = f"{waits} Kueue cannot admit it, whatever room there is."
        return Diagnosis(word, what, _FIX_OF_INADMISSIBLE, by_operator=False)
    return Diagnosis(word, waits, _FIX_OF_QUEUED)


def _refused_status(seen: Seen) -> Diagnosis | None:
    """Why the operator cannot write the job's status, by its newest Event about the job, which ends with the fix; None
    where there is none since the status was written.
    """
    fields = part(seen.job, "metadata.managedFields") or ()
    written = max((str(each.get("time")) for each in fields if each.get("subresource") == "status"), default="")
    about_job = [event for event in seen.warnings or () if part(event, "involvedObject.kind") == KIND]
    refusals = [event for event in about_job if str(event.get("message")).startswith(names.STATUS_REFUSED)]
    newest = max(refusals, key=_stored_at, default=None)
    if newest is None or _stored_at(newest) < written:  # whole seconds, so both may be of the same one
        return None
    older = " What the status shows, ε too, may be older than the ledger." if written else ""
    return Diagnosis(Reason.FORBIDDEN.value, f"{cut(str(newest.get('message')))}{older}", "")


def _stored_at(event: Object) -> str:
    """When an Event was stored, by the clock of the API server, as the times of other objects."""
    return str(event["metadata"].get("creationTimestamp") or "")


def _unseen_change(seen: Seen, now: float) -> str:
    """What has changed without an answer of an operator, as the end of a sentence; empty if there is nothing.

    An operator that is gone, or that no longer manages the namespace, leaves a status that looks well.
    """
    job, ray_status = seen.job, part(seen.ray_job, "status") or {}
    fields = part(job, "metadata.managedFields") or ()
    changed = [parse_time(each.get("time")) or 0.0 for each in fields if not each.get("subresource")]
    is_unseen = (part(job, "status.observedGeneration") or 0) < (part(job, "metadata.generation") or 0)
    if is_unseen and now - max(changed, default=now) > PATIENCE_SECONDS:
        return "the spec has changed"
    attempts: Sequence[Mapping[str, Any]] = part(job, "status.attempts") or ({},)
    ended = parse_time(ray_status.get("endTime"))
    is_open = "endTime" not in attempts[-1]
    is_late = ended is not None and now - ended > PATIENCE_SECONDS
    if seen.ray_job is None or not is_open or not is_late:
        return ""
    if not _belongs_to(job, seen.ray_job):
        return ""
    return f"RayJob {seen.ray_job['metadata']['name']} has ended"


def _belongs_to(job: Object, ray_job: Object) -> bool:
    """Whether a RayJob is that of this job, and not of an earlier one of the same name."""
    return bool(names.job_uid_of("RayJob", ray_job) == job["metadata"].get("uid"))


def _blocker(seen: Seen) -> Diagnosis | None:
    """What keeps the pods from running, by the operator's rules, in what the caller can read."""
    # These rules import dp-accounting, which takes a second. The other verbs need neither.
    from tensafe_operator.decision.diagnosis import find_blocker
    from tensafe_operator.decision.observation import ClusterWarning, Observed

    warnings = (
        ClusterWarning(
            str(part(event, "involvedObject.kind")),
            str(part(event, "involvedObject.name")),
            str(event.get("reason")),
            cut(str(event.get("message") or "")),
            parse_time(event_time(event)),
        )
        for event in _events_of_children(seen)
    )
    ray_jobs = () if seen.ray_job is None else (seen.ray_job,)
    found = find_blocker(Observed(seen.job, None, ray_jobs, tuple(seen.pods or ()), tuple(warnings)))
    if found is None:
        return None
    own = found.fix.text if found.fix else found.reason.fix
    fix = find_hint(found.reason, found.what) or own
    return Diagnosis(found.reason.value, f"{found.reason.sentence} {found.what}", fix, by_operator=False)


def _events_of_children(seen: Seen) -> list[Object]:
    """The Events of pods, RayJobs and RayClusters. Those of the job itself repeat its status, or an earlier one."""
    return [event for event in seen.warnings or () if part(event, "involvedObject.kind") != KIND]


def _evidence(seen: Seen, now: float) -> Iterator[str]:
    job = seen.job
    if (part(job, "status.observedGeneration") or 0) < (part(job, "metadata.generation") or 0) and "status" in job:
        yield "The operator has not seen the last change of the spec yet."
    yield from _attempt_lines(job)
    yield from _workload_lines(seen.workload)
    yield from _ray_job_lines(job, seen.ray_job)
    if screen.phase_of(job) in (Phase.SUCCEEDED, Phase.BUDGET_EXHAUSTED):
        return  # what its pods waited for is over
    for pod in seen.pods or ():
        yield from _pod_lines(pod)
    if screen.phase_of(job) == Phase.RUNNING:
        stepped = parse_time(part(job, "status.progress.lastUpdateTime"))
        if stepped is None:
            yield "The first steps are charged, and not over yet."
        elif now - stepped > _QUIET_SECONDS:
            yield f"The last step was done {(now - stepped) / 60:.0f} minutes ago."
    for event in _events_of_children(seen)[-_WARNINGS:]:
        about = event.get("involvedObject") or {}
        texts = (event.get("reason"), about.get("kind"), about.get("name"), event.get("message"))
        reason, kind, name, message = (cut(str(each)) for each in texts)
        yield f"Event {reason} of {kind} {name}: {message}"


def _attempt_lines(job: Object) -> Iterator[str]:
    attempts = part(job, "status.attempts") or ()
    for attempt in attempts:
        if attempt.get("endTime") and attempt.get("reason") not in (Reason.COMPLETED, Reason.INTERRUPTED):
            code = f", exit code {attempt['exitCode']}" if attempt.get("exitCode") is not None else ""
            message = f": {attempt['message']}" if attempt.get("message") else ""
            yield f"Attempt {attempt['number']} ended: {attempt.get('reason')}{code}{message}"
        for failed in () if attempt.get("endTime") else attempt.get("failedPods") or ():
            code = f", exit code {failed['exitCode']}" if failed.get("exitCode") is not None else ""
            message = f": {failed['message']}" if failed.get("message") else ""
            yield f"Attempt {attempt['number']}: pod {failed['pod']} has failed: {failed['reason']}{code}{message}"


def _workload_lines(workload: Object | None) -> Iterator[str]:
    """What Kueue says of a job that it has not admitted."""
    for condition in part(workload, "status.conditions") or ():
        kind, holds = condition.get("type"), condition.get("status")
        if (kind, holds) in (("QuotaReserved", "False"), ("Admitted", "False"), ("Evicted", "True")):
            name = (workload or {})["metadata"]["name"]
            yield f"Workload {name}, {kind}={holds}: {condition.get('reason')}: {condition.get('message')}"


def _ray_job_lines(job: Object, ray_job: Object | None) -> Iterator[str]:
    """How KubeRay reports the attempt. Its message may quote records of the driver's log, so it is not repeated."""
    status = part(ray_job, "status") or {}
    if ray_job is not None and _belongs_to(job, ray_job) and status.get("jobDeploymentStatus"):
        words = filter(None, (status["jobDeploymentStatus"], status.get("jobStatus"), status.get("reason")))
        yield f"RayJob {ray_job['metadata']['name']}: {', '.join(words)}"


def _pod_lines(pod: Object) -> Iterator[str]:
    """What a pod waits for, or how its containers ended."""
    name, status = f"Pod {pod['metadata']['name']}", pod.get("status") or {}
    if deletion := pod["metadata"].get("deletionTimestamp"):
        yield f"{name} is being deleted, by {deletion}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield f"{name} is not scheduled: {condition.get('reason')}: {condition.get('message')}"
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            yield f"{name} is ended by the cluster: {condition.get('reason')}: {condition.get('message')}"
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state: Mapping[str, Any] = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            text = f": {waiting['message']}" if waiting.get("message") else ""
            yield f"{name}, container {container['name']} waits: {waiting['reason']}{text}"
        if ended.get("exitCode"):
            yield f"{name}, container {container['name']} ended: {ended.get('reason')}, exit code {ended['exitCode']}"
    if status.get("phase") in ("Failed", "Unknown"):
        why = " ".join(filter(None, (status.get("reason"), status.get("message"))))
        yield f"{name} has the phase {status['phase']}{f': {why}' if why else ''}"
