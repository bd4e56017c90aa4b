"""Acquires the ledger for one incarnation, and finds the step at which its training starts.

Only rank 0 holds the ledger. In come the ledger, the worker's configuration and the components of a step; out comes an
`Acquisition`, which rank 0 sends to the other ranks as a message of fixed length. Every check but one comes before
the ledger is acquired, so a run that is refused there changes nothing and leaves the ledger to its present holder. The
digest of the data set and the base model are compared by the holder only: a run with others acquires the ledger and
then ends.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from tensafe_api.reasons import Reason
from tensafe_api.resolve import ledger_spec
from tensorguard.checkpoint.encryption import is_encrypted, read_decrypted
from tensorguard.checkpoint.layout import ADAPTER_WEIGHTS, STATEMENT_FILE
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.contract import Ledger, LedgerState, PublishedCheckpoint
from tensorguard.signing.base import SigningKey
from tensorguard.training.checkpointing import check_signed, checkpoint_name, latest_checkpoint
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.config import RUN_LOG, WorkerConfig, tracebacks_of
from tensorguard.training.initial_adapter import InitialAdapter, started_from
from tensorguard.training.rollback_check import check_checkpoints, read_checked
from tensorguard.training.setup import StepComponents

_MESSAGE = struct.Struct(">QQ64s71s")


@dataclass(frozen=True)
class Acquisition:
    """The result of acquiring the ledger.

    Attributes:
        incarnation: number of this incarnation within its attempt, from 1.
        step: number of steps that the restored checkpoint has; 0 without a checkpoint.
        checkpoint: name of the checkpoint to restore; empty where training starts at step 0.
        digest: digest of that checkpoint's manifest, as the ledger recorded it; empty without a checkpoint.
    """

    incarnation: int
    step: int
    checkpoint: str
    digest: str

    def pack(self) -> bytes:
        """The message for the other ranks."""
        return _MESSAGE.pack(self.incarnation, self.step, self.checkpoint.encode(), self.digest.encode())

    @classmethod
    def unpack(cls, message: bytes) -> Acquisition:
        incarnation, step, *texts = _MESSAGE.unpack(message)
        return cls(incarnation, step, *(text.rstrip(b"\0").decode() for text in texts))


NOT_RANK_0 = Acquisition(0, 0, "", "")
"""What the other ranks contribute before they receive rank 0's acquisition."""


def acquire_ledger(
    ledger: Ledger, config: WorkerConfig, components: StepComponents, signing_key: SigningKey | None = None
) -> Acquisition:
    """Check that the run may continue, then acquire its ledger at the newest checkpoint. Call on rank 0.

    Args:
        signing_key: of a run that signs its checkpoints. It resumes only from one that this key has signed.

    Raises:
        AttemptFailed: the ledger has another plan, the last restart made no progress, or the newest checkpoint is not
            signed by `signing_key`, or is encrypted and the job does not encrypt.
        DecryptionFailed: the newest checkpoint is encrypted, and the run has no identity that decrypts it.
        LedgerError: the ledger cannot be used, or another process holds it.
        CheckpointError: a checkpoint cannot be read, or belongs to another job.
    """
    ledger.wait_until_free()
    # In a cluster the run log is the pod's own, so it does not cover earlier pods.
    in_cluster = config.ledger_location is not None
    state = ledger.read() if in_cluster else read_checked(ledger, config.directory / RUN_LOG)
    if state.spec != ledger_spec(components.job, components.plan, config.job_uid):
        raise AttemptFailed(
            Reason.CONFIGURATION_CHANGED,
            "the ledger was opened with another plan than this job has; resume with the job.yaml of that run",
        )
    check_checkpoints(components.store, ledger)
    newest = latest_checkpoint(components.store, state)
    if newest is not None and signing_key is not None:
        check_signed(components.store, newest, signing_key)
    if newest is not None:
        _check_encryption(newest, components)
    if newest is not None and components.initial is not None:
        _check_start(components.store, newest, components.initial)
    step = newest.step if newest else 0
    _check_progress(state, config, step)
    state = ledger.acquire(attempt=config.attempt, from_step=step)
    ledger.record_dataset(config.dataset_digest)
    ledger.record_model(components.identity["weights"], components.identity.get("chatTemplate"))
    components.store.remove_unfinished()
    if newest is None:
        return Acquisition(state.incarnation, 0, "", "")
    return Acquisition(state.incarnation, step, checkpoint_name(newest), newest.digest)


def _check_encryption(newest: PublishedCheckpoint, components: StepComponents) -> None:
    """Check that the run decrypts the checkpoint that it resumes from, and encrypts those that follow."""
    store, name = components.store, checkpoint_name(newest)
    if not is_encrypted(store.listing(name)):
        return
    if components.job.spec.checkpoint.encryption is None:
        raise AttemptFailed(
            Reason.CONFIGURATION_CHANGED,
            f"spec.checkpoint.encryption: {newest.uri} is encrypted, and later checkpoints would not be: resume with "
            "the job.yaml of that run",
        )
    read_decrypted(store, name, components.identities, newest.digest, only=(ADAPTER_WEIGHTS,))


def _check_start(store: CheckpointStore, newest: PublishedCheckpoint, initial: InitialAdapter) -> None:
    """Check that the training of `newest` started from the adapter that this run's statements will name."""
    files = store.read(checkpoint_name(newest), newest.digest, only=(STATEMENT_FILE,))
    if started_from(json.loads(files[STATEMENT_FILE])) != initial.summary:
        raise AttemptFailed(
            Reason.CONFIGURATION_CHANGED,
            f"spec.lora.initFrom: the training of {newest.uri} started from an adapter with other digests: resume with "
            "the one that it started from, or start a new job",
        )


def _check_progress(state: LedgerState, config: WorkerConfig, step: int) -> None:
    """Refuse a second restart at the same step: it would only charge the same steps again.

    An incarnation that stopped on request has recorded an outcome, so it does not count as failed.
    """
    failed = state.attempt == config.attempt and state.outcome is None
    restarts = state.start_steps[1:] if failed else ()
    if restarts and restarts[-1] == step:
        kept = ", ".join(map(str, tracebacks_of(Path(config.private_directory), config.attempt)))
        raise AttemptFailed(
            Reason.NO_PROGRESS,
            f"the workers were restarted at step {step} and failed again before the next checkpoint"
            f"{f': {config.last_failure}' if config.last_failure else ''}; fix the cause, and resume (a smaller "
            f"spec.checkpoint.everySteps loses less work){f' (tracebacks: {kept})' if kept else ''}",
        )
