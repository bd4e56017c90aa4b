"""Folds the PrivacyLedger into the job's status: privacy figures, progress, evaluations, checkpoints, final model.

Every ε is computed from the ledger's charges by `tensafe_api.status_fold`, which the local runner uses as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import Status
from tensafe_api.status_fold import JobRecords, KeptCheckpoint, fold_records, privacy_after
from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.parsing import is_partial

_MAX_CHECKPOINTS = 128
"""How many checkpoints a status can hold."""


def fold_ledger(status: Status, claim: Claim, ledger: LedgerStatus | None) -> Status:
    """A copy of `status` with what `ledger` records (None: nothing yet). No figure falls below the one in `status`.

    Of a record that holds only charges, only the privacy figures are taken.
    """
    if ledger is None:
        return fold_records(status, claim, None)
    if is_partial(ledger):
        return with_charges(status, claim, ledger)
    return fold_records(status, claim, _records(ledger, _checkpoint_times(status, ledger)))


def with_charges(status: Status, claim: Claim, ledger: LedgerStatus) -> Status:
    """A copy of `status` with the privacy figures of `ledger`, which need its numbers of steps alone."""
    charged, recharged = _charged(ledger), ledger.steps_recharged
    privacy = privacy_after(status.privacy, claim, charged=charged, recharged=recharged)
    return status.model_copy(update={"privacy": privacy})


def has_fallen(before: Mapping[str, Any], after: Status) -> bool:
    """Whether a new status shows a smaller ε than the one before. So it is after an upgrade to a release whose
    accounting is tighter, and where the API server drops what an ε is computed from.

    Args:
        before: the status of the job, as the API server returns it.
    """
    shown, new = before.get("privacy") or {}, after.privacy
    figures = ((shown.get("epsilonClaimed"), new.epsilon_claimed), (shown.get("epsilonSpent"), new.epsilon_spent))
    return any(old is not None and (now is None or Decimal(now) < Decimal(old)) for old, now in figures)


def _charged(ledger: LedgerStatus) -> int:
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
        and newest.steps_charged == _charged(ledger)
    ):
        times[newest.uri] = parse_time(ledger.progress.last_update_time)
    return times


def _records(ledger: LedgerStatus, times: Mapping[str, float | None]) -> JobRecords:
    return JobRecords(
        steps_charged=_charged(ledger),
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
