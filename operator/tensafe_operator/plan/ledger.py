"""Ledger: a job has one ledger for its whole life, created once and known by its UID before anything is charged.

A ledger that is missing or has another UID ends the job: what was spent is unknown, so nothing may be added. A ledger
that is not the job's is never used. Whatever else happens, the charges of the job's ledger are counted in its status.
"""

from __future__ import annotations

from tensafe_api import fixes
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import Status, WorkerCount
from tensafe_api.spec_digest import has_lost_charges, has_lost_fields
from tensafe_operator import names
from tensafe_operator.children import access, ledger
from tensafe_operator.plan.admission import Admitted, Rejected, with_ledger_values
from tensafe_operator.plan.blockers import Blocker
from tensafe_operator.plan.conditions import JobState, blocked_state
from tensafe_operator.plan.diagnosis import starting_state
from tensafe_operator.plan.draft import Draft
from tensafe_operator.plan.observed import Create, Object, Observed
from tensafe_operator.plan.parsing import (
    count_ready_workers,
    has_final_outcome,
    is_terminal,
    parse_ledger_spec,
    parse_ledger_status,
)
from tensafe_operator.plan.privacy_status import fold_ledger, with_charges
from tensafe_operator.plan.suspension import SUSPENDED

LEDGER_SHORTENED = (
    "the job's PrivacyLedger has lost fields of its spec or its charges, because it was written under CRDs that drop "
    f"them, so ε computed from the rest may be too small: {fixes.LEDGER_SHORTENED}"
)


def ledger_is_shortened(observed: Observed) -> bool:
    """Return whether the job's ledger has lost fields that it was opened with, or its charges. The job may have lost
    them, too.

    A ledger without a digest is compared with the job.
    """
    found, job = observed.ledger, observed.job
    if found is None:
        return False
    if has_lost_charges(found):
        return True
    if found["spec"].get("jobUID") != job["metadata"].get("uid"):
        return False
    if has_lost_fields(found):
        return True
    status = job.get("status") or {}
    is_known = status.get("ledgerUID") == found["metadata"].get("uid")
    if is_known and not found.get("status") and (status.get("privacy") or {}).get("stepsCharged"):
        return True
    earlier = ((job["spec"].get("lora") or {}).get("initFrom") or {}).get("earlierSteps")
    return bool(earlier) and not (found["spec"].get("mechanism") or {}).get("earlierSteps")


def is_lost(known_uid: str | None, found: Object | None) -> bool:
    """Return whether the ledger that the status names is missing or was replaced by another one."""
    return known_uid is not None and (found is None or found["metadata"]["uid"] != known_uid)


def fail_for_lost_ledger(draft: Draft) -> None:
    """End the job: delete its RayJobs, and leave the privacy figures of the status unchanged."""
    draft.irreversible = True
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
    draft.set_state(JobState(phase, rejected.reason, rejected.message, accepted=False, stalled=True))


def open_ledger(draft: Draft, admitted: Admitted) -> None:
    """Show the planned privacy figures, and create the job's ledger unless the job is suspended or nothing would
    protect the ledger.

    The ledger names the Secret with the job's key, which is created with it. This decision is not irreversible: the
    ledger's name belongs to the job's UID, and an existing ledger of that name stays unchanged.
    """
    draft.status = fold_ledger(draft.status, admitted.plan, None)
    if admitted.job.spec.suspend:
        draft.set_state(SUSPENDED)
        return
    if not draft.observed.guarded:
        draft.set_state(starting_state(draft.observed, Phase.PENDING))
        return
    key = access.job_key(admitted.job)
    draft.actions += [Create(key), Create(ledger.ledger(admitted.job, admitted.plan, key))]
    draft.set_state(starting_state(draft.observed, Phase.PENDING))


def find_conflict(admitted: Admitted, found: Object, status: Status) -> JobState | None:
    """Return the state of a job that cannot use the ledger with its name; None where it can."""
    job = admitted.job.metadata
    name = names.ledger_name(job.name, job.uid or "")
    spec = parse_ledger_spec(found)
    if spec is None:
        message = f"PrivacyLedger {name} is of another release: run the release of the operator that created it"
        return JobState(Phase(status.phase or Phase.PENDING), Reason.INTERNAL_ERROR, message, stalled=True)
    if spec.job_uid != job.uid:
        message = f"PrivacyLedger {name} belongs to another job: create this job under another name"
        return JobState(Phase.PENDING, Reason.NAME_TAKEN, message, stalled=True)
    unused = status.ledger_uid is None and parse_ledger_status(found) is None
    if unused and Claim.of(spec) != admitted.plan.claim:
        # The operator creates the ledger with the figures of the job, so another client created this one.
        message = (
            f"PrivacyLedger {name} was created by another client, with other privacy values than the job's: "
            "delete it, or create this job under another name"
        )
        return JobState(Phase.PENDING, Reason.NAME_TAKEN, message, stalled=True)
    return None


def unreadable_record(draft: Draft) -> JobState:
    """Return the state of a job whose ledger has a record that this release cannot read as a whole. Its charges are
    counted. Nothing is started or ended, because the rest of the record may say otherwise.
    """
    status = draft.status
    message = f"PrivacyLedger {status.ledger_name} was written by another release: run an operator of that release"
    return JobState(Phase(status.phase or Phase.PENDING), Reason.INTERNAL_ERROR, message, stalled=True)


def count_charges(draft: Draft) -> LedgerStatus | None:
    """Count the charges of the job's ledger in its status, whatever its phase is: also the pods of an ended job charge
    until they have terminated.

    Returns:
        What the ledger records; None without a record, or where the ledger is not the job's or cannot be read.
    """
    found = _find_record(draft.status, draft.observed.ledger)
    if found is None:
        return None
    claim, record = found
    draft.status = fold_ledger(draft.status, claim, record)
    return record


def count_after_failure(status: Status, found: Object | None) -> Status:
    """Return `status` with the charges of the job's ledger, and with nothing else of it.

    It is for a job on whose ledger, as a whole, no decision could be made.
    """
    record = _find_record(status, found)
    return status if record is None else with_charges(status, *record)


def _find_record(status: Status, found: Object | None) -> tuple[Claim, LedgerStatus] | None:
    """What the job's ledger was opened for, and what it records."""
    spec, record, known = parse_ledger_spec(found), parse_ledger_status(found), status.ledger_uid
    if found is None or spec is None or record is None or known is None or found["metadata"]["uid"] != known:
        return None
    return Claim.of(spec), record


def adopt_ledger(draft: Draft, admitted: Admitted, found: Object) -> Admitted:
    """Record the ledger's UID, count its charges, and return the job with the values that the ledger fixed."""
    spec = parse_ledger_spec(found)
    assert spec is not None, "a ledger that cannot be read is a conflict"
    admitted = with_ledger_values(admitted, spec)
    status = fold_ledger(draft.status, admitted.plan, parse_ledger_status(found))
    status.ledger_name, status.ledger_uid = found["metadata"]["name"], found["metadata"]["uid"]
    desired = admitted.job.spec.cluster.workers
    status.workers = WorkerCount(desired=desired, ready=min(count_ready_workers(draft.observed.pods), desired))
    draft.status = status
    return admitted


def end_by_ledger(draft: Draft, record: LedgerStatus) -> None:
    """End a job whose ledger records the end. The status lacks it where a user has cleared the status, or where the
    driver was lost before it could report.
    """
    draft.irreversible = True
    exhausted = record.outcome == Reason.BUDGET_EXHAUSTED.value
    state = (Phase.BUDGET_EXHAUSTED, Reason.BUDGET_EXHAUSTED) if exhausted else (Phase.SUCCEEDED, Reason.COMPLETED)
    draft.set_state(JobState(*state))
