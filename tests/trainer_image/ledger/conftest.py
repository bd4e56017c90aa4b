"""A ledger's frozen facts, and the backends that keep the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from tensafe_api.events import Mechanism
from tensorguard.ledger.contract import Ledger, LedgerSpec
from tensorguard.ledger.file import FileLedger

SPEC = LedgerSpec(
    job_name="claims-triage",
    job_uid="3f2a91c0",
    lineage="claims-2026",
    mechanism=Mechanism(
        sample_rate="0.04",
        noise_multiplier="1.5",
        clip="1.0",
        unit="User",
        workers=2,
        colluders=0,
        grid_bits=20,
        expected_batch_size=200,
    ),
    unit_at_least=5000,
    planned_steps=2250,
    reserve_steps=10,
    target_epsilon="8",
    delta="0.00001",
    accountant="RDP",
)


class Backend(Protocol):
    """Where ledgers are kept: one job's place."""

    def create(self, spec: LedgerSpec) -> Ledger:
        """A new ledger."""
        ...

    def open(self) -> Ledger:
        """A further handle, as another process would have one."""
        ...


class FileBackend:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, spec: LedgerSpec) -> Ledger:
        return FileLedger.create(self._directory, spec)

    def open(self) -> Ledger:
        return FileLedger(self._directory)


BACKENDS = {"file": FileBackend}


@pytest.fixture(params=BACKENDS)
def make_backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Makes an empty place of the backend under test."""
    return lambda: BACKENDS[request.param](tmp_path_factory.mktemp("ledger"))


@pytest.fixture
def backend(make_backend) -> Backend:  # type: ignore[no-untyped-def]
    """An empty place of the backend under test."""
    return make_backend()


@pytest.fixture
def spec() -> LedgerSpec:
    return SPEC
