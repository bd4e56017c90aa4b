"""The write operations of a ledger that are the same for every backend: charges, data set, model, checkpoints,
outcome.

A backend implements how an entry becomes durable (`_record`), and checks that the writer holds the ledger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tensafe_api.resources.ledger import Outcome
from tensorguard.ledger.contract import DatasetChanged, LedgerState, ModelChanged, PublishedCheckpoint
from tensorguard.ledger.fold import Entry, checkpoint_entry


class LedgerWriter(ABC):
    """The part of a `contract.Ledger` that its holder writes with."""

    @abstractmethod
    def read(self) -> LedgerState: ...

    @abstractmethod
    def _record(self, entry: Entry) -> LedgerState:
        """Make the entry durable. Raises Fenced if this is not the holder."""

    def charge(self, steps: int) -> LedgerState:
        if steps < 1:
            raise ValueError(f"a charge must be of at least one step, not {steps}")
        return self._record({"kind": "charge", "steps": steps})

    def record_dataset(self, digest: str) -> LedgerState:
        known = self.read()
        if known.dataset_digest == digest:
            return known
        if known.dataset_digest is not None:
            raise DatasetChanged(
                "the data set is not the one that this ledger was opened for; resume with that data set, or start a "
                "new run"
            )
        return self._record({"kind": "dataset", "digest": digest})

    def record_model(self, weights: str, chat_template: str | None) -> LedgerState:
        known = self.read()
        if known.model_weights not in (None, weights):
            raise ModelChanged(
                f"the base model is {weights}, but the job started with {known.model_weights}: resume with those files "
                "(on a hub, spec.model.revision names them), or start a new job"
            )
        if known.model_weights is not None and known.chat_template_digest != chat_template:
            raise ModelChanged(
                "the chat template is not the one that the job started with: resume with that one, or start a new job"
            )
        if known.model_weights is not None:
            return known
        return self._record({"kind": "model", "weights": weights, "chatTemplate": chat_template})

    def record_checkpoint(self, checkpoint: PublishedCheckpoint) -> LedgerState:
        return self._record(checkpoint_entry(checkpoint))

    def record_outcome(self, outcome: Outcome) -> LedgerState:
        return self._record({"kind": "outcome", "outcome": outcome})
