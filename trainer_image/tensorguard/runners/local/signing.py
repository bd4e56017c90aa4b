"""Checks, before a local run starts, that it can sign its checkpoints as its manifest and its earlier attempts ask."""

from __future__ import annotations

from pathlib import Path

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.ledger.contract import LedgerState
from tensorguard.runners.preflight import RunRefused
from tensorguard.signing.base import KeyUnusable
from tensorguard.signing.keys import read_signing_key

_PASS = "pass --signing-key KEY, or set TENSAFE_SIGNING_KEY"


def check_signing(
    job: TenSafeTrainingJob, earlier: LedgerState | None, signing_key: str | Path | None, *, on_nodes: bool
) -> None:
    """Raise RunRefused if the key is missing or cannot be used.

    Args:
        earlier: the ledger of the run that is resumed.
        signing_key: the file or PKCS #11 URI of the key; None: none was given.
        on_nodes: whether the workers may run on other machines.
    """
    if signing_key is None:
        if job.spec.checkpoint.signing is not None:
            raise RunRefused(
                "spec.checkpoint.signing", f"the checkpoints are to be signed, and a local run reads no Secret: {_PASS}"
            )
        if earlier is not None and earlier.checkpoints and earlier.checkpoints[-1].signer is not None:
            raise RunRefused("", f"the run that is resumed signs its checkpoints: {_PASS}")
        return
    if on_nodes:
        raise RunRefused(
            "", "--signing-key: on several machines the worker that signs may run on any of them: train on one machine"
        )
    try:
        read_signing_key(signing_key)
    except KeyUnusable as error:
        raise RunRefused("", f"--signing-key: {error}") from error
