"""Step 9's second half: a checkpoint is written, then the ledger records it as released; and the way back from there.

Rank 0 writes; every worker reads. A checkpoint is used only if the ledger recorded its digest, and the ledger is used
only if it goes on from the one that each checkpoint saw: neither can be rolled back without the other noticing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from peft import PeftModel
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tensafe_api.statement import StatementInputs, build_statement, canonical_json, digest, render_markdown
from tensorguard.checkpoint.optimizer_state import OPTIMIZER, dump_optimizer, load_optimizer
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, TrainerState, parse_trainer_state
from tensorguard.ledger.contract import Fenced, Ledger, LedgerState, PublishedCheckpoint
from tensorguard.models.adapter import adapter_config, adapter_state, load_adapter_state
from tensorguard.models.source import ModelSource
from tensorguard.training.rollback_check import check_checkpoints

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
FINAL = "final"
STATEMENT = "statement.json"
STATEMENT_PAGE = "statement.md"
_STEP = "step-"


@dataclass
class Checkpointer:
    """Writes checkpoints of one incarnation. Lives on rank 0."""

    store: CheckpointStore
    ledger: Ledger
    source: ModelSource
    model: PeftModel
    optimizer: torch.optim.Optimizer
    facts: Callable[[LedgerState, int, str], StatementInputs]
    """(ledger, step, the adapter's digest) to what the statement says."""
    keep: int
    claimed: tuple[int, int]
    """The attempt and incarnation that writes."""

    def save(self, step: int, *, final: bool = False) -> PublishedCheckpoint | None:
        """Write and record a checkpoint of `step` steps, and remove those that are no longer kept.

        None where the ledger has no place for another release but the final one.

        Raises:
            Fenced: where a later incarnation has claimed the ledger, whose checkpoints this one would write over.
        """
        state = self.ledger.read()
        if (state.attempt, state.incarnation) != self.claimed:
            raise Fenced(f"attempt {state.attempt}, incarnation {state.incarnation} has claimed the ledger meanwhile")
        if not final and self.ledger.max_checkpoints and len(state.checkpoints) >= self.ledger.max_checkpoints - 1:
            return None
        files = {
            ADAPTER_WEIGHTS: save_tensors(adapter_state(self.model), metadata={"format": "pt"}),
            ADAPTER_CONFIG: json.dumps(adapter_config(self.model, self.source), indent=1, sort_keys=True).encode(),
        }
        document = build_statement(self.facts(state, step, digest(files[ADAPTER_WEIGHTS])))
        place = TrainerState(
            job_uid=state.spec.job_uid,
            step=step,
            attempt=state.attempt,
            incarnation=state.incarnation,
            ledger_head=state.head,
            ledger_length=state.length,
        )
        claim = canonical_json(document)
        files |= {
            OPTIMIZER: dump_optimizer(self.optimizer),
            TRAINER_STATE: place.dump(),
            STATEMENT: claim,
            STATEMENT_PAGE: render_markdown(document).encode(),
        }
        name = FINAL if final else f"{_STEP}{step:06d}-a{state.attempt}i{state.incarnation}"
        check_checkpoints(self.store, self.ledger)
        manifest_digest = self.store.write(name, files)
        release = PublishedCheckpoint(
            step=step,
            attempt=state.attempt,
            uri=self.store.uri(name),
            digest=manifest_digest,
            statement_digest=digest(claim),
            final=final,
        )
        self.ledger.record_checkpoint(release)
        self._prune(name)
        return release

    def _prune(self, newest: str) -> None:
        """Remove the oldest of the checkpoints that this ledger recorded; never the final one, never another job's."""
        recorded = [checkpoint_name(release) for release in self.ledger.read().checkpoints if not release.final]
        steps = [name for name in dict.fromkeys(recorded) if self.store.exists(name)]
        for name in steps[: -self.keep]:
            if name != newest:
                self.store.remove(name)


def checkpoint_name(release: PublishedCheckpoint) -> str:
    """The checkpoint's name in its store."""
    return release.uri.rstrip("/").rsplit("/", 1)[-1]


def latest_checkpoint(store: CheckpointStore, ledger: LedgerState) -> PublishedCheckpoint | None:
    """The newest checkpoint that the ledger recorded and that still exists; None where training begins at step 0."""
    return next((release for release in reversed(ledger.checkpoints) if store.exists(checkpoint_name(release))), None)


def restore_checkpoint(
    store: CheckpointStore, name: str, expected: str, model: PeftModel, optimizer: torch.optim.Optimizer
) -> TrainerState:
    """Put a checkpoint's adapter and optimiser back, after every file has been checked against its digest."""
    files = store.read(name, expected)
    load_adapter_state(model, load_tensors(files[ADAPTER_WEIGHTS]))
    load_optimizer(optimizer, files[OPTIMIZER])
    return parse_trainer_state(files, store.uri(name))
