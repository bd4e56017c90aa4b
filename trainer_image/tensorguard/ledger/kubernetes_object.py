"""A `PrivacyLedger` object of Kubernetes as a `LedgerState`, and the other way round.

`decode` reads an object, `encode` makes the status that replaces it. `entry_hash` is the ledger's chain: each head
covers its entry and the head before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from tensafe_api.resources.base import fields_of
from tensafe_api.resources.ledger import (
    MAX_EVALUATIONS,
    MAX_STARTS,
    ChargeRecord,
    LedgerSpec,
    LedgerStatus,
    PrivacyLedgerSpec,
    PublishedCheckpointRecord,
)
from tensafe_api.resources.status import EvaluationResult, Progress
from tensorguard.ledger.contract import Charge, LedgerCorrupt, LedgerState, PublishedCheckpoint
from tensorguard.ledger.fold import Entry, new_state


def decode(found: dict[str, Any]) -> LedgerState:
    """The state in a PrivacyLedger object.

    Raises:
        LedgerCorrupt: if this version cannot read it.
    """
    try:
        spec = PrivacyLedgerSpec.model_validate(found["spec"], by_name=False)
        frozen = LedgerSpec.model_validate({name: getattr(spec, name) for name in LedgerSpec.model_fields})
        opened = new_state(frozen, entry_hash("", {"kind": "open", "uid": found["metadata"]["uid"]}))
        if "status" not in found:
            return opened
        status = LedgerStatus.model_validate(found["status"], by_name=False)
    except (ValueError, KeyError) as error:
        raise LedgerCorrupt(
            f"this version of tensafe cannot read the ledger ({error}); use the version that wrote it"
        ) from error
    charges = tuple(
        Charge(record.attempt, record.steps, record.incarnation, holder_of(record.pod_uid, record.writer))
        for record in status.charges
    )
    return LedgerState(
        spec=frozen,
        attempt=status.attempt,
        incarnation=next(charge.incarnation for charge in charges if charge.attempt == status.attempt),
        charges=charges,
        checkpoints=tuple(
            PublishedCheckpoint(
                step=record.step,
                attempt=record.attempt,
                uri=record.uri,
                digest=record.digest,
                statement_digest=record.statement_digest,
                final=record.final,
                signer=record.signer,
            )
            for record in status.releases
        ),
        steps_recharged=status.steps_recharged,
        start_steps=status.starts,
        charged_through=status.charged_through,
        outcome=status.outcome,
        dataset_digest=status.dataset_digest,
        model_weights=status.model_weights,
        chat_template_digest=status.chat_template_digest,
        head=status.head,
        length=status.length,
    )


def encode(
    state: LedgerState, before: dict[str, Any], progress: Progress | None, evaluations: Iterable[EvaluationResult]
) -> dict[str, Any]:
    """`state` as the status of a PrivacyLedger.

    Args:
        before: the status that it replaces. Fields of a newer release are kept.
        progress: of the run; None keeps that of `before`.
        evaluations: new ones, which are added to those of `before`.
    """
    known = {record["uri"]: record for record in before.get("releases", ())}
    published = tuple(
        PublishedCheckpointRecord.model_validate(known[checkpoint.uri])
        if checkpoint.uri in known
        else _checkpoint_record(checkpoint, state)
        for checkpoint in state.checkpoints
    )
    by_step = {record["step"]: EvaluationResult.model_validate(record) for record in before.get("evaluations", ())}
    by_step |= {evaluation.step: evaluation for evaluation in evaluations}
    progress = progress or Progress.model_validate(before.get("progress", {}))
    status = LedgerStatus(
        attempt=state.attempt,
        charges=tuple(
            ChargeRecord(
                attempt=charge.attempt,
                steps=charge.steps,
                incarnation=charge.incarnation,
                **_holder_fields(charge.holder),
            )
            for charge in state.charges
        ),
        charged_through=state.charged_through,
        starts=state.start_steps[-MAX_STARTS:],
        steps_recharged=state.steps_recharged,
        releases=published,
        dataset_digest=state.dataset_digest,
        model_weights=state.model_weights,
        chat_template_digest=state.chat_template_digest,
        outcome=state.outcome,
        progress=progress,
        evaluations=tuple(by_step[step] for step in sorted(by_step))[-MAX_EVALUATIONS:],
        length=state.length,
        head=state.head,
    )
    unknown = {name: value for name, value in before.items() if name not in fields_of(LedgerStatus)}
    return {**unknown, **status.model_dump(mode="json", exclude_none=True)}


def holder_of(pod_uid: str, writer: str | None) -> str:
    """The holder of an acquisition: the pod, and the process in it (`_holder_fields` is the inverse)."""
    return f"{pod_uid}/{writer}" if writer else pod_uid


def _holder_fields(holder: str) -> dict[str, str]:
    """The fields of a `ChargeRecord` that name the holder."""
    pod_uid, _, writer = holder.partition("/")
    return {"pod_uid": pod_uid, **({"writer": writer} if writer else {})}


def _checkpoint_record(checkpoint: PublishedCheckpoint, state: LedgerState) -> PublishedCheckpointRecord:
    return PublishedCheckpointRecord(
        uri=checkpoint.uri,
        step=checkpoint.step,
        attempt=checkpoint.attempt,
        digest=checkpoint.digest,
        statement_digest=checkpoint.statement_digest,
        final=checkpoint.final,
        steps_charged=state.steps_charged,
        signer=checkpoint.signer,
    )


def entry_hash(previous: str, entry: Entry) -> str:
    """The head of a ledger whose head was `previous`, after `entry`."""
    text = json.dumps([previous, entry], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
