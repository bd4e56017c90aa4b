"""What one worker is told: everything it needs that is not on its own machine already.

On one machine it travels through Ray as plain strings and numbers; in a cluster each pod makes its own from what is
mounted there (`runners.pod.worker`). Secrets do not travel: the job key is a file (in a cluster a mounted Secret) whose
*path* is passed on.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.ledger import COUNTED_ANNOTATION
from tensorguard.ledger.backends import LedgerLocation

COUNTED_RECORDS_REMARK = (
    "unit_at_least was not given, so the number of records, {count}, stands for it in the job, the ledger and the "
    "statement: this makes it public, and the privacy claim takes it as public; give a public lower bound to keep it"
)
JOB_KEY = "job.key"
RUN_LOG = "events.jsonl"
TRACEBACKS = "errors-{who}.log"
"""Tracebacks of one rank or of the driver: they may quote records, so the file is the owner's alone."""


@dataclass(frozen=True)
class WorkerConfig:
    """One attempt, as each of its workers sees it."""

    job: str
    """The completed manifest (`tensafe_api.resolve`), as JSON."""
    job_uid: str
    attempt: int
    run_directory: str
    """Holds the ledger, the job key, the event log and the stop flag."""
    shards: tuple[str, ...]
    evaluation: str | None
    dataset_digest: str
    threads: int
    ledger_location: LedgerLocation | None = None
    """Where the ledger is in a cluster; None: in the run's folder."""
    key_file: str | None = None
    """Where the job key is mounted; None: in the run's folder."""
    mounts: str | None = None
    """Folder in which the claims of pvc:// addresses are mounted; None: nothing is mounted."""

    def pack(self) -> dict[str, Any]:
        """As plain values, for the way through Ray."""
        return asdict(self)

    @classmethod
    def unpack(cls, fields: Mapping[str, Any]) -> WorkerConfig:
        location = fields["ledger_location"]
        return cls(**{**fields, "ledger_location": LedgerLocation(**location) if location else None})

    def parse_job(self) -> TenSafeTrainingJob:
        return TenSafeTrainingJob.model_validate(json.loads(self.job))

    @property
    def directory(self) -> Path:
        return Path(self.run_directory)

    def job_key(self) -> bytes:
        return Path(self.key_file or self.directory / JOB_KEY).read_bytes()


def counted_records_remark(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """What the statement must say of a job whose records were counted."""
    count = annotations.get(COUNTED_ANNOTATION, "")
    return (COUNTED_RECORDS_REMARK.format(count=int(count)),) if count.isascii() and count.isdecimal() else ()


def append_traceback(path: Path, attempt: int) -> None:
    """Keep the present exception for the run's owner."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
        file.write(f"{time.ctime()}, attempt {attempt}\n{traceback.format_exc()}\n")
