"""Folds the PrivacyLedger into the job's status: privacy figures, progress, evaluations, checkpoints, final model.

Every ε is computed from the ledger's charges by `tensafe_api.status_fold`, which the local runner uses as well.
"""

from __future__ import annotations

from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import Status
from tensafe_api.status_fold import JobRecords, KeptCheckpoint, fold_records

_MAX_CHECKPOINTS = 128
"""How many checkpoints a status can hold."""


def fold_ledger(status: Status, claim: Claim, ledger: LedgerStatus | None) -> Status:
    """A copy of `status` with what `ledger` records (None: nothing yet). No figure falls below the one in `status`."""
    return fold_records(status, claim, None if ledger is None else _records(ledger))


def _records(ledger: LedgerStatus) -> JobRecords:
    return JobRecords(
        steps_charged=sum(charge.steps for charge in ledger.charges),
        steps_recharged=ledger.steps_recharged,
        progress=ledger.progress,
        evaluations=ledger.evaluations,
        checkpoints=[
            KeptCheckpoint(each.uri, each.step, each.digest, each.steps_charged)
            for each in ledger.releases[-_MAX_CHECKPOINTS:]
        ],
        published=ledger.releases,
        dataset_digest=ledger.dataset_digest,
        model_weights=ledger.model_weights,
        chat_template_digest=ledger.chat_template_digest,
    )
