"""Checks of a published checkpoint, and changes that someone who may write to its storage could make, for tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.statement.contents import canonical_json, digest
from tensorguard.checkpoint.store import MANIFEST, CheckpointStore
from tensorguard.signing.keys import read_public_key, read_signing_key
from tensorguard.signing.signer import SIGNATURE_FILES, sign_checkpoint
from tensorguard.signing.trust import Trust, TrustedKey
from tensorguard.verification.checkpoint import verify_checkpoint
from tensorguard.verification.errors import NotVerified


def refused(place: Path, trust: Trust = None) -> NotVerified:
    with pytest.raises(NotVerified) as error:
        verify_checkpoint(str(place), trust)
    return error.value


def trusted(published: Any) -> TrustedKey:
    return TrustedKey(read_public_key(published.key))


def sign_again(folder: Path, key: Path) -> None:
    """Write a new manifest of the files in a folder and sign all, as someone who may write to the storage could."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    kept = {name: content for name, content in files.items() if name not in (MANIFEST, *SIGNATURE_FILES)}
    shutil.rmtree(folder)
    own = read_signing_key(key)
    CheckpointStore(str(folder.parent)).write(
        folder.name, kept, lambda name, digests: sign_checkpoint(own, name, digests, kept["statement.json"])
    )


def rewrite_manifest(folder: Path) -> None:
    """Write a manifest that fits the files, so that only what the files say of each other can show a change."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in (MANIFEST, *SIGNATURE_FILES)}
    listing = {name: {"sha256": digest(content), "size": len(content)} for name, content in files.items()}
    (folder / MANIFEST).write_bytes(canonical_json({"files": listing}))
