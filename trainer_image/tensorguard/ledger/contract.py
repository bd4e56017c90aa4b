"""The privacy ledger: the record of charged steps from which every privacy figure is computed.

A job has one ledger for its whole life. It is opened with everything that the privacy claim rests on (`LedgerSpec`),
which never changes again. After that, only these operations change it. Each is durable before its call returns:

- `acquire`: a group of workers starts, as the next incarnation of an attempt. The previous holder can no longer write
  (fencing).
- `charge`: further steps are charged, *before* the first of them is revealed.
- `record_checkpoint`: a checkpoint was published, so that others can read it.
- `record_dataset` and `record_model` (once each) and `record_outcome`.

ε is computed from *charged* steps. Nothing takes a charge back: no crash, no older checkpoint and no new attempt.

Two backends implement this contract: a local file (`file`) and, in a cluster, a Kubernetes object (`kubernetes`). One
test suite covers both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import LedgerSpec, Outcome
from tensafe_api.resources.mechanism import PrivacyEvent, charged_events
from tensafe_api.resources.status import EvaluationResult, Progress


class LedgerError(Exception):
    """The ledger cannot be used. `str()` is a sentence for the user."""

    reason: ClassVar[Reason] = Reason.LEDGER_CORRUPT


class LedgerForbidden(LedgerError):
    """The API server does not allow this pod to read the ledger."""

    reason: ClassVar[Reason] = Reason.LEDGER_UNREACHABLE


class LedgerMissing(LedgerError):
    """There is no ledger."""


class LedgerCorrupt(LedgerError):
    """The ledger's text is not what was written: the file was edited or the disk is damaged."""


class LedgerBusy(LedgerError):
    """Another run holds the ledger."""

    reason: ClassVar[Reason] = Reason.LEDGER_LOCKED


class LedgerUnreachable(Exception):
    """The ledger does not answer, but may answer later: a restart of the workers tries again. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.LEDGER_UNREACHABLE


class Fenced(LedgerError):
    """A later incarnation has acquired the ledger; this one may no longer charge."""

    reason: ClassVar[Reason] = Reason.LEDGER_LOCKED


class DatasetChanged(LedgerError):
    """The data set is not the one that the ledger was opened for."""

    reason: ClassVar[Reason] = Reason.CONFIGURATION_CHANGED


class ModelChanged(LedgerError):
    """The base model or its chat template is not the one that the job started with."""

    reason: ClassVar[Reason] = Reason.CONFIGURATION_CHANGED


@dataclass(frozen=True)
class Charge:
    """The steps that were charged in one attempt, over all its incarnations."""

    attempt: int
    steps: int
    incarnation: int
    holder: str


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A checkpoint that others can read: the state after `step` training steps. `digest` is that of its manifest."""

    step: int
    attempt: int
    uri: str
    digest: str
    statement_digest: str
    final: bool
    signer: str | None = None
    """Fingerprint of the key that signed it; None: it is not signed."""


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
    """The step at which each incarnation of the last attempt started; only the latest ones if there were many."""
    charged_through: int
    """The current incarnation is charged for all steps below this one."""
    outcome: Outcome | None
    dataset_digest: str | None
    model_weights: str | None
    """The base model: `commit:` and its commit on the hub, or `sha256:` and the digest of its files."""
    chat_template_digest: str | None
    head: str
    length: int

    @property
    def steps_charged(self) -> int:
        """All charges, over all attempts. ε is computed from this number."""
        return sum(charge.steps for charge in self.charges)

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """The charges as privacy events, for accounting."""
        return charged_events(self.spec.mechanism, self.steps_charged)


class Ledger(Protocol):
    """One job's ledger. A write returns the new state once it has reached the disk (or the API server)."""

    max_checkpoints: int | None
    """How many published checkpoints it can record, the final one included; None means no limit."""

    def read(self) -> LedgerState:
        """The current state. Raises LedgerMissing or LedgerCorrupt."""
        ...

    def extends(self, head: str, length: int) -> bool:
        """Whether this ledger continues the ledger that had this head at this length. False if the ledger was cut
        short. A backend that keeps no old heads compares only the lengths.
        """
        ...

    def acquire(self, *, attempt: int, from_step: int) -> LedgerState:
        """Start the next incarnation of `attempt`, which resumes at `from_step`, and fence all earlier ones.

        Raises:
            Fenced: if a later attempt has already acquired the ledger.
            LedgerBusy: if another process holds the ledger.
        """
        ...

    def charge(self, steps: int) -> LedgerState:
        """Charge `steps` ≥ 1 further steps. Raises Fenced if this is no longer the holder."""
        ...

    def record_dataset(self, digest: str) -> LedgerState:
        """Record the data set's keyed digest. The same digest again changes nothing; another raises DatasetChanged."""
        ...

    def record_model(self, weights: str, chat_template: str | None) -> LedgerState:
        """Record the base model and the digest of the chat template (None where the job uses none).

        The same values again change nothing; others raise ModelChanged.
        """
        ...

    def record_checkpoint(self, checkpoint: PublishedCheckpoint) -> LedgerState:
        """Record a published checkpoint."""
        ...

    def record_outcome(self, outcome: Outcome) -> LedgerState:
        """Record how the attempt ended."""
        ...

    def set_progress(self, progress: Progress, evaluation: EvaluationResult | None = None) -> None:
        """Include the training progress in the next write, if this backend publishes it. Writes nothing itself."""
        ...

    def wait_until_free(self) -> None:
        """Return once no process holds the ledger. Returns immediately if `acquire` fences the holder.

        Raises:
            LedgerBusy: if it is still held after this backend's time limit.
        """
        ...

    def close(self) -> None:
        """Give up the ledger."""
        ...
