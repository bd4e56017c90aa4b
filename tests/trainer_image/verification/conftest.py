"""One small job that signs its checkpoints, trained for real, and copies of what it published."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorguard.signing import keys
from tests.support.trainer.rank_harness import Job


def make_key(folder: Path) -> Path:
    """Make a signing key pair in a new folder, and return the file of the private key."""
    private, public, _ = keys.new_signing_key()
    keys.write_new(folder, {keys.SIGNING_KEY: (private, 0o600), keys.PUBLIC_KEY: (public.encode(), 0o644)})
    return folder / keys.SIGNING_KEY


@dataclass(frozen=True)
class Published:
    """What a stranger may have: a checkpoint, an older one, the public key, and the folder of the run.

    Attributes:
        final, older: folders of two checkpoints of one job.
        key: the public key's file; the private one lies beside it.
        run: the folder with the ledger.
    """

    final: Path
    older: Path
    key: Path
    run: Path

    @property
    def private_key(self) -> Path:
        return self.key.with_name(keys.SIGNING_KEY)

    @property
    def identity(self) -> Path:
        """The identity of the recipient, where the checkpoint is encrypted."""
        return self.key.with_name(keys.IDENTITY)


def train(folder: Path, *overrides: str, signed: bool) -> Path:
    """Train a job of four steps in `folder`, and return the folder of its run."""
    job = Job.make(
        folder / "run",
        "spec.cluster.workers=1",
        "spec.training.steps=4",
        "spec.lora.rank=32",  # files of several pages
        "spec.checkpoint.everySteps=2",
        "spec.training.microBatchSize=32",
        *overrides,
    )
    key = make_key(folder / "keys")
    job.signing_key = key if signed else None
    job.train_alone()
    assert job.ended().reason == "Completed"
    return job.directory


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("signed"), signed=True)


@pytest.fixture(scope="session")
def trained_unsigned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("unsigned"), signed=False)


@pytest.fixture(scope="session")
def trained_encrypted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `trained`; the identity of the one recipient is beside the signing key."""
    folder = tmp_path_factory.mktemp("encrypted")
    content, recipient = keys.new_identity()
    run = train(folder, f"spec.checkpoint.encryption={{recipients: [{recipient}]}}", signed=True)
    keys.write_new(folder / "keys", {keys.IDENTITY: (content, 0o600)})
    return run


@pytest.fixture
def encrypted(trained_encrypted: Path, tmp_path: Path) -> Published:
    return copy_of(trained_encrypted, tmp_path)


@pytest.fixture
def published(trained: Path, tmp_path: Path) -> Published:
    return copy_of(trained, tmp_path)


@pytest.fixture
def unsigned(trained_unsigned: Path, tmp_path: Path) -> Published:
    return copy_of(trained_unsigned, tmp_path)


def copy_of(run: Path, to: Path) -> Published:
    """The run's ledger, public key and checkpoints, copied to another folder, as a stranger receives them."""
    shutil.copytree(run / "checkpoints", to / "received")
    shutil.copytree(run, to / "run", ignore=shutil.ignore_patterns("model", "checkpoints"))
    shutil.copytree(run.with_name("keys"), to / "keys")
    return Published(
        to / "received" / "final",
        to / "received" / "step-000002-a1i1",
        to / "keys" / keys.PUBLIC_KEY,
        to / "run",
    )


@pytest.fixture
def make_other_key(tmp_path: Path) -> Callable[[], Path]:
    """Makes a key of a stranger, and returns the file of the private key."""
    return lambda: make_key(tmp_path / "stranger")
