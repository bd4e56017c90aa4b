"""What was spent: the ledger that every privacy figure comes from.

A job has one ledger for its whole life. It is opened with everything that the claim rests on (`LedgerSpec`), which
never changes again. Then only these things happen to it, each durable before the call returns:

- `claim`: a group of workers begins, as the next incarnation of an attempt; whoever held the ledger before can no
  longer write (fencing);
- `charge`: so many further steps are paid for, *before* the first of them is revealed;
- `record_checkpoint`: a checkpoint can be read by others;
- `record_dataset` (once) and `record_outcome`.

ε is of *charged* steps. Nothing takes a charge back: not a crash, not an older checkpoint, not a new attempt.

Two backends keep this contract: a local file (`file`) and, in a cluster, a Kubernetes object. One suite tests both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from tensafe_api.privacy_events import PrivacyEvent, charged_events
from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import LedgerSpec, Outcome
from tensafe_api.resources.status import EvaluationResult, Progress


class LedgerError(Exception):
    """The ledger cannot be used. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.LEDGER_CORRUPT


class LedgerForbidden(LedgerError):
    """The API server does not let this pod read the ledger."""

    reason: ClassVar[Reason] = Reason.LEDGER_UNREACHABLE


class LedgerMissing(LedgerError):
    """There is no ledger."""


class LedgerCorrupt(LedgerError):
    """The ledger's text is not what was written: somebody edited it, or the disk did."""


class LedgerBusy(LedgerError):
    """Another run holds the ledger."""

    reason: ClassVar[Reason] = Reason.LEDGER_LOCKED


class LedgerUnreachable(Exception):
    """The ledger does not answer, and may again: a restart of the workers asks anew. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.LEDGER_UNREACHABLE


class Fenced(LedgerError):
    """A later incarnation has claimed the ledger; this one may no longer spend."""

    reason: ClassVar[Reason] = Reason.LEDGER_LOCKED


class DatasetChanged(LedgerError):
    """The data set is not the one that the ledger was opened for."""

    reason: ClassVar[Reason] = Reason.CONFIGURATION_CHANGED


@dataclass(frozen=True)
class Charge:
    """What one attempt was charged, over its incarnations."""

    attempt: int
    steps: int
    incarnation: int
    holder: str


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A checkpoint that others can read: `step` steps of training, under this digest of its manifest."""

    step: int
    attempt: int
    uri: str
    digest: str
    statement_digest: str
    final: bool


@dataclass(frozen=True)
class LedgerState:
    """A ledger as read at one moment. `head` is the hash of its last entry (64 hex digits), `length` the number of
    entries.
    """

    spec: LedgerSpec
    attempt: int
    incarnation: int
    charges: tuple[Charge, ...]
    checkpoints: tuple[PublishedCheckpoint, ...]
    steps_recharged: int
    start_steps: tuple[int, ...]
    """The step at which each incarnation of the last attempt began, or the latest ones where there were many."""
    charged_through: int
    """The step through which the present incarnation has been charged."""
    outcome: Outcome | None
    dataset_digest: str | None
    head: str
    length: int

    @property
    def steps_charged(self) -> int:
        """All charges, over all attempts: what ε is computed from."""
        return sum(charge.steps for charge in self.charges)

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """The charges in the words of accounting."""
        return charged_events(self.spec.mechanism, self.steps_charged)


class Ledger(Protocol):
    """One job's ledger. Every write has reached the disk (or the API server) when it returns the state after it."""

    max_checkpoints: int | None
    """How many releases it can hold, the final one included; None where there is no limit."""

    def read(self) -> LedgerState:
        """The state now. Raises LedgerMissing or LedgerCorrupt."""
        ...

    def extends(self, head: str, length: int) -> bool:
        """Whether this ledger goes on from the one that had this head at this length. A ledger that was cut short does
        not; a backend that keeps no old heads compares the lengths alone.
        """
        ...

    def acquire(self, *, attempt: int, from_step: int) -> LedgerState:
        """Begin the next incarnation of `attempt`, which goes on from `from_step`, and fence all earlier ones.

        Raises:
            Fenced: where a later attempt has claimed already.
            LedgerBusy: where another process holds the ledger.
        """
        ...

    def charge(self, steps: int) -> LedgerState:
        """Pay for `steps` ≥ 1 further steps. Raises Fenced where this is no longer the claimant."""
        ...

    def record_dataset(self, digest: str) -> LedgerState:
        """Note the data set's keyed digest; the same one again changes nothing, another one raises DatasetChanged."""
        ...

    def record_checkpoint(self, release: PublishedCheckpoint) -> LedgerState:
        """Note a checkpoint."""
        ...

    def record_outcome(self, outcome: Outcome) -> LedgerState:
        """Note how the attempt ended."""
        ...

    def set_progress(self, progress: Progress, evaluation: EvaluationResult | None = None) -> None:
        """Have the next write tell how far the training is, where others look for it here. Costs no write itself."""
        ...

    def wait_until_free(self) -> None:
        """Return once nobody holds the ledger any more; at once where a claim fences whoever does.

        Raises:
            LedgerBusy: where it is still held after the handle's patience.
        """
        ...

    def close(self) -> None:
        """Let go of the ledger."""
        ...
