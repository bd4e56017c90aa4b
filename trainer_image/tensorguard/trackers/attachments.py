"""Reads what may be attached to a tracker's run from a job's checkpoints: statements, and adapters on request.

In come a job and the address of a published checkpoint; out come files, each checked against the digest that the ledger
recorded. The state of the optimiser and of the trainer are not among them. Encrypted weights stay encrypted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.checkpoint.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS, ENCRYPTED, STATEMENT_FILE, STATEMENT_PAGE
from tensorguard.checkpoint.store import CheckpointError, CheckpointStore
from tensorguard.storage import name_in
from tensorguard.trackers.tracker import Attachment

_FILES = {
    "statement": (STATEMENT_FILE, STATEMENT_PAGE),
    "adapter": (ADAPTER_WEIGHTS, ADAPTER_WEIGHTS + ENCRYPTED, ADAPTER_CONFIG, STATEMENT_FILE, STATEMENT_PAGE),
}


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint. digest: of its manifest; None: it is not known."""

    step: int
    uri: str
    digest: str | None
    final: bool


def read_attachment(
    job: TenSafeTrainingJob, checkpoint: Checkpoint, kind: Literal["statement", "adapter"]
) -> Attachment:
    """The files of a checkpoint.

    Raises:
        CheckpointError: it was removed, cannot be read, or is not what was published.
        ImportError, ValueError: the client of its storage is not installed, or its address has no client.
    """
    store = CheckpointStore.for_job(job)
    name = name_in(checkpoint.uri)
    if not store.exists(name):
        raise CheckpointError(f"{checkpoint.uri} is not there any more")
    found = store.read(name, checkpoint.digest)
    files = {file: found[file] for file in _FILES[kind] if file in found}
    return Attachment(kind, checkpoint.step, checkpoint.final, files)
