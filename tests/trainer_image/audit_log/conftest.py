"""A ledger with its audit log in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tensorguard.audit_log.audited_ledger import AuditedLedger
from tensorguard.audit_log.line_files import LineFile
from tensorguard.audit_log.log import AuditLog
from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.ledger.file import FileLedger
from tests.support.ledger_files import SPEC

Open = Callable[[], AuditedLedger]


def log_in(directory: Path) -> AuditLog:
    return AuditLog(LineFile(directory / AUDIT_LOG), job=SPEC.job_name, job_uid=SPEC.job_uid, process="rank 0")


@pytest.fixture
def new_ledger(tmp_path: Path) -> Path:
    """A folder with a ledger that no process has acquired."""
    FileLedger.create(tmp_path, SPEC)
    return tmp_path


@pytest.fixture
def open_ledger(new_ledger: Path) -> Open:
    """Opens the ledger in `tmp_path` with its audit log, as each process does."""
    return lambda: AuditedLedger(FileLedger(new_ledger), log_in(new_ledger))
