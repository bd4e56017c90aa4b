"""Decide what to do for a job: from what was observed and the time to actions, a status and the next wake-up.

The package is pure: no I/O, and the time is an argument. This file is the decision list. Each step either returns, with
a comment that names who acts next, or leaves the job to the step after it:

    ended? ─► deleted? ─► ledger lost? ─► calibrated? ─► rejected? ─► no ledger? ─► in conflict?
      ─► attempt open? ─► next attempt

Each policy has a file, and a test file of the same name. What ends or deletes something, starts a second or later
attempt, or needs a profile is marked `irreversible`, some of it by the policies: `reconcile` does it only on the API
server's own answer. These invariants hold whatever is observed:

- At most one attempt is open, and none starts while a pod of an earlier one is left.
- The status records an attempt, with the ledger's UID, before the attempt's RayJob is created.
- A final phase never changes, and no number of charged steps falls.
"""

from __future__ import annotations

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import Attempt, Status
from tensafe_operator.decision import attempts
from tensafe_operator.decision.admission import Admitted, Rejected, admit, report_calibration
from tensafe_operator.decision.attempts import Assessment, AttemptState
from tensafe_operator.decision.cleanup import delete_job, delete_job_key, delete_old_ray_jobs
from tensafe_operator.decision.conditions import JobState
from tensafe_operator.decision.deadline import check_deadline, check_start_deadline, with_what_it_waited_for
from tensafe_operator.decision.deletion import end_training, is_being_deleted
from tensafe_operator.decision.diagnosis import POLL_SECONDS, diagnose, starting_state
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.failed_pods import remember_failed_pods
from tensafe_operator.decision.ledger import (
    adopt_ledger,
    count_charges,
    end_by_ledger,
    fail_for_lost_ledger,
    find_conflict,
    is_lost,
    keep_counting,
    open_ledger,
)
from tensafe_operator.decision.observation import Decision, Object, Observed
from tensafe_operator.decision.parsing import (
    are_all_ready,
    has_final_outcome,
    is_terminal,
    parse_ledger_spec,
    parse_ledger_status,
)
from tensafe_operator.decision.repeated_failures import report_repeated
from tensafe_operator.decision.resolved_names import has_resolved_image, resolve_image, with_digest, with_resolved
from tensafe_operator.decision.retry import (
    acquired_attempts,
    backoff_end,
    end_attempt,
    has_failed,
    out_of_numbers,
    state_after_failure,
)
from tensafe_operator.decision.starting import (
    answer_due,
    correct_children,
    has_predecessors,
    start_attempt,
    with_profile,
)
from tensafe_operator.decision.suspension import SUSPENDED, as_suspension, suspend_attempt, withdraw_request
from tensafe_operator.settings import Settings


def decide(observed: Observed, now: float, settings: Settings) -> Decision:
    """Return what to do for a job at the time `now`, in seconds since the epoch."""
    draft = Draft(observed, now, settings)
    _decide(draft)
    report_repeated(draft)
    if draft.ends_job:
        draft.irreversible = True
        count_charges(draft, exact=True)
        if not draft.has_all_figures:
            return draft.wait_for_figures()  # the accountant computes the ε of exactly the charged steps
    return draft.finish()


def is_final(status: Status) -> bool:
    """Return whether the job has ended: from then on things are only deleted: its key, its RayJobs."""
    return Phase(status.phase or Phase.PENDING).final


def _decide(draft: Draft) -> None:
    before, found = draft.status, draft.observed.ledger
    if is_final(before):
        count_charges(draft, exact=True)
        delete_old_ray_jobs(draft, final=True)
        delete_job_key(draft)
        delete_job(draft)
        return  # the job has ended
    if is_being_deleted(draft.observed.job):
        count_charges(draft)
        end_training(draft)
        return  # the API server removes the job once it has no finalizer
    if is_lost(before.ledger_uid, found):
        fail_for_lost_ledger(draft)
        return  # the author creates a new job
    opened = parse_ledger_spec(found) if before.ledger_uid is not None else None
    admitted = admit(draft.observed.job, opened, draft.ask)
    if admitted is None:
        report_calibration(draft)
        return  # the accountant calibrates the noise
    if isinstance(admitted, Rejected):
        keep_counting(draft, admitted)
        return  # the author changes the manifest
    if found is None:
        open_ledger(draft, admitted)
        return  # the API server returns the new ledger, or the author resumes a suspended job
    if conflict := find_conflict(admitted, found, before):
        draft.set_state(conflict)
        return  # a user removes the ledger, or the cluster administrator installs the release that created it
    admitted, record = adopt_ledger(draft, admitted, found), parse_ledger_status(found)
    delete_old_ray_jobs(draft, final=False)
    last = draft.status.attempts[-1] if draft.status.attempts else None
    if last is not None and last.end_time is None:
        _decide_open_attempt(draft, with_resolved(admitted, draft.status.resolved), record, last)
        return
    _decide_next_attempt(draft, admitted, record, last)


def _decide_open_attempt(draft: Draft, admitted: Admitted, record: LedgerStatus | None, attempt: Attempt) -> None:
    """An attempt is open: start it, end it, or report its state."""
    suspend, ray_job = admitted.job.spec.suspend, draft.ray_job_of(attempt)
    if ray_job is None:
        _decide_without_ray_job(draft, admitted, record, attempt)
        return
    is_new = attempt.start_time is None
    if is_new and (due := answer_due(ray_job)) > draft.now:
        draft.wake_at(due)
        return  # KubeRay writes the RayJob's first status, so that one write of the job's status shows both
    correct_children(draft, admitted)
    attempt = remember_failed_pods(attempts.refresh(attempt, ray_job, record, draft.now), draft.observed)
    draft.record(attempt)
    draft.status.resolved = with_digest(draft.status.resolved, draft.observed.pods, attempt.number, record)
    assessment = _assess(draft, admitted, record, attempt, ray_job)
    if assessment.state.over:
        end_attempt(draft, admitted.job, attempt, assessment, record)
        return  # the next decision, once this status is stored
    if suspend and is_new:
        draft.set_state(JobState(Phase.STARTING, Reason.STARTING))
        return  # the next decision stops it, once its start is stored: it never starts again under this number
    if suspend:
        suspend_attempt(draft, ray_job, assessment.state)
        return  # the trainer saves a checkpoint and stops
    withdraw_request(draft, ray_job)
    if assessment.state is AttemptState.STARTING:
        draft.set_state(diagnose(draft, Phase.STARTING) or JobState(Phase.STARTING, Reason.STARTING))
        return  # KubeRay starts the pods, an autoscaler adds a node, or a user removes the blocker
    is_running = assessment.state is AttemptState.RUNNING
    if is_running and not are_all_ready(draft.observed) and (blocked := diagnose(draft, Phase.STARTING)):
        draft.set_state(blocked)
        return  # as for a start: the attempt has lost a pod
    phase = Phase.RUNNING if is_running else Phase.QUEUED
    draft.set_state(JobState(phase, assessment.reason, assessment.message))
    # The trainer charges the ledger, or Kueue admits the RayJob.


def _decide_without_ray_job(draft: Draft, admitted: Admitted, record: LedgerStatus | None, attempt: Attempt) -> None:
    """An attempt is open that has no RayJob: it starts, or a user has deleted the RayJob."""
    suspend = admitted.job.spec.suspend
    if attempt.start_time is None:
        if suspend:
            draft.set_state(SUSPENDED)
            return  # the author resumes the job
        if not has_resolved_image(draft.status.resolved, admitted):
            # Its author has written another image since the attempt was recorded.
            own = admitted.job.spec.cluster
            draft.status.resolved = resolve_image(draft.status.resolved, own, own, draft.settings, record)
            draft.set_state(JobState(Phase.STARTING, Reason.STARTING))
            return  # the next decision, once this status is stored
        start_attempt(draft, admitted, attempt)
        return  # KubeRay creates the RayCluster, or what `start_attempt` waits for
    if not draft.observed.kuberay:
        draft.set_state(starting_state(draft.observed, Phase.STARTING))
        draft.wake_at(draft.now + POLL_SECONDS)
        return  # the cluster administrator installs KubeRay; until then the RayJob may still exist
    deleted = Assessment(AttemptState.FAILED, Reason.WORKER_LOST, f"RayJob {attempt.ray_job_name} was deleted")
    end_attempt(draft, admitted.job, attempt, as_suspension(deleted, draft.status, suspend=suspend), record)
    # The next decision, once this status is stored.


def _decide_next_attempt(draft: Draft, admitted: Admitted, record: LedgerStatus | None, last: Attempt | None) -> None:
    """No attempt is open: record the next one as soon as it may start."""
    status, job = draft.status, admitted.job
    if record is not None and has_final_outcome(record):
        end_by_ledger(draft, record)
        return  # the job has ended
    if last is not None and has_failed(last):
        state = state_after_failure(status.attempts, acquired_attempts(record), job.spec.retry.max_attempts)
        if state.phase.final:
            draft.set_state(state)
            return  # the job has ended
    if job.spec.suspend:
        draft.set_state(SUSPENDED)
        return  # the author resumes the job
    if last is not None and (end := backoff_end(status.attempts, last)) > draft.now:
        draft.set_state(JobState(Phase.STARTING, Reason.RETRYING, last.message or ""))
        draft.wake_at(end)
        return  # the backoff passes
    attempt = attempts.next_attempt(job.metadata.name, status.attempts, draft.observed.ray_jobs, record)
    if attempt is None:
        draft.set_state(out_of_numbers(last))
        return  # the author creates a new job
    if has_predecessors(draft, admitted, attempt):
        return  # the pods terminate, or a user deletes them
    taken = with_profile(draft, admitted)
    if taken is None:
        return  # the cluster administrator corrects the profile, or the author the manifest
    draft.set_state(JobState(Phase.STARTING, Reason.STARTING))
    cluster = taken.job.spec.cluster
    draft.status.resolved = resolve_image(status.resolved, job.spec.cluster, cluster, draft.settings, record)
    draft.record(attempt)
    # The next decision starts it, once this status is stored.


def _assess(
    draft: Draft, admitted: Admitted, record: LedgerStatus | None, attempt: Attempt, ray_job: Object
) -> Assessment:
    """Find the state of an open attempt, and register the times at which it changes without an event."""
    assessment = attempts.assess(ray_job, record, attempt.number, draft.now, draft.settings.stall_seconds)
    if ray_job["metadata"].get("deletionTimestamp"):
        assessment = as_suspension(assessment, draft.status)
    if assessment.state.over:
        return assessment if is_terminal(ray_job) else with_what_it_waited_for(assessment, draft.observed)
    spec = admitted.job.spec
    deadlines = (
        check_deadline(draft.status.attempts, spec.active_deadline_seconds, draft.now),
        check_start_deadline(ray_job, spec.start_deadline_seconds, draft.now, ready=are_all_ready(draft.observed)),
    )
    if exceeded := next((each.exceeded for each in deadlines if each.exceeded is not None), None):
        return with_what_it_waited_for(exceeded, draft.observed)
    draft.wake_at(*(time for time in (*(each.at for each in deadlines), assessment.wake) if time is not None))
    return assessment
