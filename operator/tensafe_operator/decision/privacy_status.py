"""Folds the PrivacyLedger into the job's status: privacy figures, progress, evaluations, checkpoints, final model.

Every ε follows from the ledger's charges by `tensafe_api.job_status`, which the local runner uses as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensafe_api.job_status import Figures, JobRecords, KeptCheckpoint, status_from_records
from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import parse_time

_MAX_CHECKPOINTS = 128
"""How many checkpoints a status can hold."""


def status_from_ledger(status: Status, claim: Claim, ledger: LedgerStatus | None, figures: Figures) -> Status:
    """A copy of `status` with what `ledger` records (None: nothing yet). No number of steps falls below that in
    `status`. While ε is not known, nothing of it changes.
    """
    records = None if ledger is None else _records(ledger, _checkpoint_times(status, ledger))
    return status_from_records(status, claim, records, figures)


def steps_charged(ledger: LedgerStatus) -> int:
    """Return how many steps a ledger records over all attempts."""
    return sum(charge.steps for charge in ledger.charges)


def _checkpoint_times(status: Status, ledger: LedgerStatus) -> Mapping[str, float | None]:
    """When the checkpoints were written, by their URI. The ledger has no times, so those in the status are kept.

    The newest checkpoint was written after the last step, and after its evaluation, if that step has its number and no
    step was charged since. It gets the time of the step. An operator that was not running then never learns the time.
    """
    times = {each.uri: parse_time(each.time) for each in status.checkpoints}
    newest = ledger.releases[-1] if ledger.releases else None
    if (
        newest is not None
        and times.get(newest.uri) is None
        and newest.step == ledger.progress.step
        and newest.steps_charged == steps_charged(ledger)
    ):
        times[newest.uri] = parse_time(ledger.progress.last_update_time)
    return times


def _records(ledger: LedgerStatus, times: Mapping[str, float | None]) -> JobRecords:
    return JobRecords(
        steps_charged=steps_charged(ledger),
        steps_recharged=ledger.steps_recharged,
        progress=ledger.progress,
        evaluations=ledger.evaluations,
        checkpoints=[
            KeptCheckpoint(
                each.uri,
                each.step,
                each.digest,
                each.steps_charged,
                times.get(each.uri),
                signer=each.signer,
            )
            for each in ledger.releases[-_MAX_CHECKPOINTS:]
        ],
        published=ledger.releases,
        dataset_digest=ledger.dataset_digest,
        model_weights=ledger.model_weights,
        chat_template_digest=ledger.chat_template_digest,
    )
