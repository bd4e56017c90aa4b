"""What was spent and what came of it, folded from the ledger into the job's status.

Every ε is computed here from the ledger's charges, never taken from anybody's word; and never one that is smaller than
the status said before, since a ledger that is seen late may tell of less than is known.
"""

from __future__ import annotations

from tensafe_api import accounting
from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import CheckpointRecord, FinalModel, Progress, Status


def fold_ledger(status: Status, claim: Claim, ledger: LedgerStatus | None) -> None:
    """Let `status` say what the ledger tells; what it said before is the least."""
    before = status.privacy.steps_charged or 0
    told = sum(charge.steps for charge in ledger.charges) if ledger is not None else 0
    again = max(status.privacy.steps_recharged or 0, ledger.steps_recharged if ledger is not None else 0)
    status.privacy = claim.privacy_status(charged=max(before, told), recharged=again)
    if ledger is None or told < before:
        status.progress = status.progress if status.progress.total_steps else Progress(step=0, total_steps=claim.steps)
        return
    status.progress = ledger.progress.model_copy(update={"total_steps": claim.steps})
    status.evaluations = ledger.evaluations
    status.checkpoints = tuple(
        CheckpointRecord(
            uri=release.uri,
            step=release.step,
            epsilon=accounting.format_epsilon(claim.epsilon(release.steps_charged)),
            digest=release.digest,
        )
        for release in ledger.releases[-_CHECKPOINTS:]
    )
    status.resolved = status.resolved.model_copy(update={"dataset_digest": ledger.dataset_digest})
    final = next((release for release in reversed(ledger.releases) if release.final), None)
    if final is not None:
        status.final_model = FinalModel(
            uri=final.uri,
            digest=final.digest,
            statement_uri=f"{final.uri}/statement.json",
            statement_digest=final.statement_digest,
        )


_CHECKPOINTS = 128
