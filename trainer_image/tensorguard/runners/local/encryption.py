"""Checks, before a local run starts, that it can encrypt its checkpoints, and decrypt the one that it resumes from."""

from __future__ import annotations

from pathlib import Path

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.checkpoint.encryption import (
    RECIPIENTS_FIELD,
    RecipientInvalid,
    check_identity,
    is_encrypted,
    parse_recipients,
    read_identities,
)
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.contract import LedgerState
from tensorguard.runners.preflight import RunRefused
from tensorguard.signing.base import KeyUnusable
from tensorguard.signing.keys import IDENTITY_VARIABLE, identity_in_environment
from tensorguard.storage import name_in

_FIELD = "spec.checkpoint.encryption"
_PASS = f"pass --identity FILE, or set {IDENTITY_VARIABLE}"


def check_recipients(job: TenSafeTrainingJob) -> None:
    """Raise RunRefused if a local run cannot encrypt for the recipients of its manifest."""
    encryption = job.spec.checkpoint.encryption
    if encryption is None:
        return
    if encryption.recipients_config_map is not None:
        raise RunRefused(
            f"{_FIELD}.recipientsConfigMap",
            f"a local run reads no ConfigMap: write {RECIPIENTS_FIELD} instead, or pass "
            f"--set '{_FIELD}={{recipients: [age1...]}}'",
        )
    try:
        parse_recipients(encryption.recipients, RECIPIENTS_FIELD)
    except RecipientInvalid as error:
        raise RunRefused(RECIPIENTS_FIELD, str(error).removeprefix(f"{RECIPIENTS_FIELD}: ")) from error


def check_encryption(
    job: TenSafeTrainingJob,
    store: CheckpointStore,
    earlier: LedgerState | None,
    identity: Path | None,
    *,
    on_nodes: bool,
) -> None:
    """Raise RunRefused if a run would be stopped by its encryption later on.

    Args:
        job: `check_recipients` has accepted it.
        store: of the job's checkpoints.
        earlier: the ledger of the run that is resumed.
        identity: the file of the identity; None: none was given.
        on_nodes: whether the workers may run on other machines, where each reads the identity of its own node.

    Raises:
        CheckpointError: the checkpoint to resume from cannot be read.
    """
    encryption = job.spec.checkpoint.encryption
    if on_nodes and identity is not None and identity != identity_in_environment():
        raise RunRefused(
            "",
            "--identity: on several machines each worker reads the identity of its own node: set "
            f"{IDENTITY_VARIABLE} on each node before `ray start`",
        )
    try:
        identities = read_identities(identity) if identity is not None else None
        if encryption is not None:
            check_identity(job, parse_recipients(encryption.recipients, RECIPIENTS_FIELD), identities)
    except KeyUnusable as error:
        raise RunRefused("", f"--identity: {error}") from error
    if earlier is None or not _resumes_encrypted(store, earlier):
        return
    if encryption is None:
        raise RunRefused(
            _FIELD,
            "the run that is resumed encrypts its checkpoints, and later ones would not be encrypted: resume with its "
            "job.yaml",
        )
    if identities is None:
        raise RunRefused("", f"the checkpoint to resume from is encrypted: {_PASS}")


def _resumes_encrypted(store: CheckpointStore, earlier: LedgerState) -> bool:
    """Whether the newest checkpoint that still exists is encrypted."""
    names = (name_in(each.uri) for each in reversed(earlier.checkpoints))
    newest = next((name for name in names if store.exists(name)), None)
    return newest is not None and is_encrypted(store.listing(newest))
