"""Ledger: a job has one ledger for its whole life, created once and known by its UID before anything is charged.

A ledger that is missing or has another UID ends the job: what was spent is unknown, so nothing may be added. A ledger
that is not the job's is never used. Whatever else happens, the charges of the job's ledger are counted in its status.
"""

from __future__ import annotations

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import Status, WorkerCount
from tensafe_operator.children import access, ledger
from tensafe_operator.decision.admission import Admitted, Rejected, with_ledger_values
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.conditions import JobState, blocked_state
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.figures import AllowedSteps
from tensafe_operator.decision.observation import Create, Object
from tensafe_operator.decision.parsing import (
    count_ready_workers,
    has_final_outcome,
    is_readable,
    is_terminal,
    parse_ledger_spec,
    parse_ledger_status,
)
from tensafe_operator.decision.privacy_status import status_from_ledger
from tensafe_operator.decision.suspension import SUSPENDED


def is_lost(known_uid: str | None, found: Object | None) -> bool:
    """Return whether the ledger that the status names is missing or was replaced by another one."""
    return known_uid is not None and (found is None or found["metadata"]["uid"] != known_uid)


def fail_for_lost_ledger(draft: Draft) -> None:
    """End the job: delete its RayJobs, and leave the privacy figures of the status unchanged."""
    for ray_job in draft.observed.ray_jobs:
        if not is_terminal(ray_job):
            draft.delete(ray_job)
    about = f"PrivacyLedger {draft.status.ledger_name}"
    blocker = Blocker(Reason.LEDGER_LOST, about, Reason.LEDGER_LOST.sentence)
    draft.set_state(blocked_state(blocker, Phase.FAILED))


def keep_counting(draft: Draft, rejected: Rejected) -> None:
    """Start nothing for a rejected manifest, but count what its ledger has been charged: the job may have started under
    an older release of the operator, which accepted the manifest.
    """
    phase = Phase(draft.status.phase or Phase.PENDING)
    record = count_charges(draft)
    if record is not None and has_final_outcome(record):
        end_by_ledger(draft, record)
        return
    blocker = Blocker(rejected.reason, "", rejected.message)
    draft.set_state(JobState(phase, rejected.reason, rejected.message, accepted=False, stalled=True, blocker=blocker))


def open_ledger(draft: Draft, admitted: Admitted) -> None:
    """Create the job's ledger, unless the job is suspended: then show the planned privacy figures.

    The ledger names the Secret with the job's key, which is created with it. An existing ledger of that name stays
    unchanged. The next decision, which follows at once, writes the status with the ledger's UID, and with the figures
    that are asked for here.
    """
    if admitted.job.spec.suspend:
        draft.status = status_from_ledger(draft.status, admitted.claim, None, draft.figures())
        draft.set_state(SUSPENDED)
        return
    draft.ask(AllowedSteps(admitted.claim))
    key = access.job_key(admitted.job)
    draft.actions += [Create(key), Create(ledger.ledger(admitted.job, admitted.claim, key))]


def find_conflict(admitted: Admitted, found: Object, status: Status) -> JobState | None:
    """Return the state of a job that cannot use the ledger with its name; None where it can."""
    job, name = admitted.job.metadata, found["metadata"]["name"]
    spec = parse_ledger_spec(found)
    if spec is None or not is_readable(found):
        # Nothing is started or ended: what this release cannot read may say that the job has completed.
        phase, fix = Phase(status.phase or Phase.PENDING), "run the release of the operator that created it"
        return _conflict(phase, Reason.INTERNAL_ERROR, name, "is of another release", fix)
    if spec.job_uid != job.uid:
        fix = "create this job under another name"
        return _conflict(Phase.PENDING, Reason.NAME_TAKEN, name, "belongs to another job", fix)
    unused = status.ledger_uid is None and not found.get("status")
    if unused and Claim.of(spec) != admitted.claim:
        # The operator creates the ledger with the figures of the job, so another client created this one.
        what = "was created by another client, with other privacy values than the job's"
        fix = "delete it, or create this job under another name"
        return _conflict(Phase.PENDING, Reason.NAME_TAKEN, name, what, fix)
    return None


def count_charges(draft: Draft, *, exact: bool = False) -> LedgerStatus | None:
    """Count the charges of the job's ledger in its status, whatever its phase is: also the pods of an ended job charge
    until they have terminated.

    Args:
        exact: whether ε is that of exactly the charged steps, and not of the next point (`decision.figures`).

    Returns:
        What the ledger records; None without a record, or where the ledger is not the job's or cannot be read.
    """
    found, known = draft.observed.ledger, draft.status.ledger_uid
    if found is None or known is None or found["metadata"]["uid"] != known or not is_readable(found):
        return None
    spec, record = parse_ledger_spec(found), parse_ledger_status(found)
    if spec is not None and record is not None:
        draft.status = status_from_ledger(draft.status, Claim.of(spec), record, draft.figures(exact=exact))
    return record


def adopt_ledger(draft: Draft, admitted: Admitted, found: Object) -> Admitted:
    """Record the ledger's UID, count its charges, and return the job with the values that the ledger fixed."""
    spec = parse_ledger_spec(found)
    assert spec is not None, "a ledger that cannot be read is a conflict"
    admitted = with_ledger_values(admitted, spec)
    record = parse_ledger_status(found)
    status = status_from_ledger(draft.status, admitted.claim, record, draft.figures())
    status.ledger_name, status.ledger_uid = found["metadata"]["name"], found["metadata"]["uid"]
    desired = admitted.job.spec.cluster.workers
    status.workers = WorkerCount(desired=desired, ready=min(count_ready_workers(draft.observed.pods), desired))
    draft.status = status
    return admitted


def end_by_ledger(draft: Draft, record: LedgerStatus) -> None:
    """End a job whose ledger records the end. The status lacks it where a user has cleared the status, or where the
    driver was lost before it could report.
    """
    exhausted = record.outcome == Reason.BUDGET_EXHAUSTED.value
    state = (Phase.BUDGET_EXHAUSTED, Reason.BUDGET_EXHAUSTED) if exhausted else (Phase.SUCCEEDED, Reason.COMPLETED)
    draft.set_state(JobState(*state))


def _conflict(phase: Phase, reason: Reason, name: str, what: str, fix: str) -> JobState:
    about = f"PrivacyLedger {name}"
    message = f"{about} {what}: {fix}"
    return JobState(phase, reason, message, stalled=True, blocker=Blocker(reason, about, what))
