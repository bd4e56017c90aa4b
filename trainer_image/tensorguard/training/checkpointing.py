"""Writes checkpoints with their statements, publishes them in the ledger, and restores them.

Rank 0 writes a checkpoint, then records it in the ledger as published; every rank restores from it. A checkpoint is
used only if the ledger recorded its digest, and, where the job signs its checkpoints, only if the same key has signed
it. The ledger is used only if it extends the ledger that each checkpoint was written with (`rollback_check`). So a
rollback of either shows in the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tensafe_api.statement.contents import StatementInputs, build_statement, canonical_json, digest, render_markdown
from tensorguard.checkpoint.encryption import Identities, Recipients, read_decrypted
from tensorguard.checkpoint.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MODEL_CARD, STATEMENT_FILE, STATEMENT_PAGE
from tensorguard.checkpoint.optimizer_state import OPTIMIZER, dump_optimizer, load_optimizer
from tensorguard.checkpoint.store import MANIFEST, CheckpointStore
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, TrainerState, parse_trainer_state
from tensorguard.ledger.contract import Fenced, Ledger, LedgerState, PublishedCheckpoint
from tensorguard.models.adapter import adapter_config, adapter_state, load_adapter_state
from tensorguard.models.base_license import base_license
from tensorguard.models.source import ModelSource
from tensorguard.signing.base import SigningKey
from tensorguard.signing.signer import (
    SIGNATURE_FILES,
    SignatureInvalid,
    check_signature,
    sign_checkpoint,
    signer_in,
)
from tensorguard.statements.model_card import BaseModel, render_model_card
from tensorguard.storage import name_in
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.rollback_check import check_checkpoints

FINAL = "final"
_STEP = "step-"


@dataclass
class Checkpointer:
    """Writes the checkpoints of one incarnation, on rank 0.

    Attributes:
        statement_inputs: from (ledger, step, the adapter's digest), what the statement is computed from.
        use: Python for the model card that loads the adapter and tries it (`Task.loading_lines`).
        keep: how many checkpoints that are not final are kept.
        acquired_as: attempt and incarnation of the writer.
        signing_key: signs the checkpoints; None: they are not signed.
        recipients: for whom weights and optimiser state are encrypted; None: they are stored as they are.
    """

    store: CheckpointStore
    ledger: Ledger
    source: ModelSource
    model: PeftModel
    optimizer: torch.optim.Optimizer
    statement_inputs: Callable[[LedgerState, int, str], StatementInputs]
    keep: int
    acquired_as: tuple[int, int]
    use: Sequence[str] = ()
    signing_key: SigningKey | None = None
    recipients: Recipients | None = None

    def save(self, step: int, *, final: bool = False) -> PublishedCheckpoint | None:
        """Write and publish a checkpoint of `step` steps, and remove those that are no longer kept.

        The final checkpoint has no optimiser state: no step follows, and the state is private to the run.

        Returns None, and writes nothing, where the ledger has room only for the final checkpoint.

        Raises:
            Fenced: a later incarnation has acquired the ledger; this one could overwrite its checkpoints.
        """
        state = self.ledger.read()
        if (state.attempt, state.incarnation) != self.acquired_as:
            raise Fenced(f"attempt {state.attempt}, incarnation {state.incarnation} has acquired the ledger meanwhile")
        if not final and self.ledger.max_checkpoints and len(state.checkpoints) >= self.ledger.max_checkpoints - 1:
            return None
        files = {
            ADAPTER_WEIGHTS: save_tensors(adapter_state(self.model), metadata={"format": "pt"}),
            ADAPTER_CONFIG: json.dumps(adapter_config(self.model, self.source), indent=1, sort_keys=True).encode(),
        }
        document = build_statement(self.statement_inputs(state, step, digest(files[ADAPTER_WEIGHTS])))
        trainer_state = TrainerState(
            job_uid=state.spec.job_uid,
            step=step,
            attempt=state.attempt,
            incarnation=state.incarnation,
            ledger_head=state.head,
            ledger_length=state.length,
        )
        statement = canonical_json(document)
        files |= {
            **({} if final else {OPTIMIZER: dump_optimizer(self.optimizer)}),
            TRAINER_STATE: trainer_state.dump(),
            STATEMENT_FILE: statement,
            STATEMENT_PAGE: render_markdown(document).encode(),
            MODEL_CARD: model_card(document, self.source, self.use, encrypted=self.recipients is not None).encode(),
        }
        stored = files if self.recipients is None else self.recipients.encrypt(files)
        name = FINAL if final else f"{_STEP}{step:06d}-a{state.attempt}i{state.incarnation}"
        check_checkpoints(self.store, self.ledger)
        key = self.signing_key
        signed: dict[str, bytes] = {}

        def sign(name: str, digests: Mapping[str, str]) -> Mapping[str, bytes]:
            if key is not None:
                signed.update(sign_checkpoint(key, name, digests, statement))
            return signed

        manifest_digest = self.store.write(name, stored, sign)
        published = PublishedCheckpoint(
            step=step,
            attempt=state.attempt,
            uri=self.store.uri(name),
            digest=manifest_digest,
            statement_digest=digest(statement),
            final=final,
            signer=signer_in(signed) if signed else None,
        )
        self.ledger.record_checkpoint(published)
        self._prune()
        return published

    def _prune(self) -> None:
        """Remove the oldest checkpoints that this ledger recorded: never the final one, never those of another job."""
        newest_first = reversed(self.ledger.read().checkpoints)
        recorded = dict.fromkeys(checkpoint_name(each) for each in newest_first if not each.final)
        for name in [each for each in recorded if self.store.exists(each)][self.keep :]:
            self.store.remove(name)


def model_card(
    document: Mapping[str, Any], source: ModelSource, use: Sequence[str] = (), *, encrypted: bool = False
) -> str:
    """The model card of an adapter from its statement, and from what is known of its base model."""
    hub_id = source.name if source.is_hub else None
    base = BaseModel(source.name, hub_id, base_license(source))
    return render_model_card(document, base, use, encrypted=encrypted)


def checkpoint_name(published: PublishedCheckpoint) -> str:
    """The checkpoint's name in its store."""
    return name_in(published.uri)


def latest_checkpoint(store: CheckpointStore, ledger: LedgerState) -> PublishedCheckpoint | None:
    """The newest checkpoint that the ledger recorded and that still exists; None where training starts at step 0."""
    return next((each for each in reversed(ledger.checkpoints) if store.exists(checkpoint_name(each))), None)


def check_signed(store: CheckpointStore, published: PublishedCheckpoint, key: SigningKey) -> None:
    """Check that `key` signed the files whose digests the manifest of a checkpoint has.

    The files themselves are compared with the manifest where they are read (`restore_checkpoint`).

    Raises:
        AttemptFailed: the checkpoint is not signed, or by another key.
        CheckpointError: it cannot be read.
    """
    name = checkpoint_name(published)
    statement = store.read(name, published.digest, only=(STATEMENT_FILE,))[STATEMENT_FILE]
    digests = {**store.listing(name), MANIFEST: published.digest}
    try:
        check_signature(digests, statement, store.read_beside(name, SIGNATURE_FILES), key.trust)
    except SignatureInvalid as error:
        raise AttemptFailed(
            error.reason,
            f"{published.uri} is not signed by the key of this run: {error}; resume with the key that signed it, or "
            "move it away to resume from the previous checkpoint, or from the start if there is none (the steps since "
            "then are charged again)",
        ) from error


def restore_checkpoint(
    store: CheckpointStore,
    name: str,
    expected: str,
    model: PeftModel,
    optimizer: torch.optim.Optimizer,
    identities: Identities | None = None,
) -> TrainerState:
    """Load a checkpoint's adapter and optimizer state, after every file was checked against its digest.

    The final checkpoint has no optimizer state. No step follows it.

    Args:
        expected: digest of the checkpoint's manifest, as the ledger recorded it.
        identities: decrypt an encrypted checkpoint.
    """
    files = read_decrypted(store, name, identities, expected)
    load_adapter_state(model, load_tensors(files[ADAPTER_WEIGHTS]))
    if name != FINAL or OPTIMIZER in files:  # earlier releases stored it
        load_optimizer(optimizer, files[OPTIMIZER])
    return parse_trainer_state(files, store.uri(name))
