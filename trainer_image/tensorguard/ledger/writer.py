"""What a claimant writes, the same for every backend: charges, the data set, releases, the outcome.

A backend says how an entry becomes durable (`_record`), and whether whoever writes has claimed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tensafe_api.resources.ledger import Outcome
from tensorguard.ledger.contract import DatasetChanged, LedgerState, PublishedCheckpoint
from tensorguard.ledger.fold import Entry, checkpoint_entry


class LedgerWriter(ABC):
    """The claimant's half of a `contract.Ledger`."""

    @abstractmethod
    def read(self) -> LedgerState: ...

    @abstractmethod
    def _record(self, entry: Entry) -> LedgerState:
        """Make the entry durable. Raises Fenced where this is not the claimant."""

    def charge(self, steps: int) -> LedgerState:
        if steps < 1:
            raise ValueError(f"a charge is of at least one step, not {steps}")
        return self._record({"kind": "charge", "steps": steps})

    def record_dataset(self, digest: str) -> LedgerState:
        known = self.read()
        if known.dataset_digest == digest:
            return known
        if known.dataset_digest is not None:
            raise DatasetChanged(
                "the data set is not the one that this ledger was opened for; resume with the same, or start anew"
            )
        return self._record({"kind": "dataset", "digest": digest})

    def record_checkpoint(self, release: PublishedCheckpoint) -> LedgerState:
        return self._record(checkpoint_entry(release))

    def record_outcome(self, outcome: Outcome) -> LedgerState:
        return self._record({"kind": "outcome", "outcome": outcome})
