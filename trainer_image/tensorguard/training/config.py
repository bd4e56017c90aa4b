"""The parameters of one worker, and the names of the files of a run.

On one machine the driver sends a `WorkerConfig` through Ray as plain strings and numbers. In a cluster each pod builds
its own from its mounted files (`runners.pod.worker`). No secret is in it: the job key is a file (in a cluster a mounted
Secret), and only its *path* is a parameter.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.mechanism import Mechanism
from tensorguard.ledger.backends import LedgerLocation

if TYPE_CHECKING:  # the driver of an attempt in a cluster imports this module, and needs no accounting
    from tensafe_api.statement.contents import Place

COUNTED_RECORDS_REMARK = (
    "unit_at_least was not given, so the job, the ledger and the statement use the number of records, {count}, in its "
    "place. This makes it public, and the privacy claim is under zero-out adjacency: it protects what each record is, "
    "not how many there are. Set unit_at_least to a public lower bound to keep the number private"
)
RUN_LOG = "events.jsonl"
PRIVATE_METRICS = "private-metrics-rank{rank}.jsonl"
TRACEBACKS = "errors-{process}.log"
"""Tracebacks of one rank or of the driver, in the run's private folder: they may quote records."""


@dataclass(frozen=True)
class WorkerConfig:
    """The parameters of one attempt for one of its workers."""

    job: str
    """The manifest with all defaults filled in (`tensafe_api.resolve`), as JSON."""
    job_uid: str
    attempt: int
    place: Place
    """Where the workers run."""
    run_directory: str
    """The run's folder: it holds the ledger, the run log and the stop flag."""
    private_directory: str
    """The run's private folder, for tracebacks and private metrics. Nothing in it is published."""
    key_file: str
    """The file of the job key, outside the run's folder: the ledger there has a digest that this key opens."""
    shards: tuple[str, ...]
    """Path of each rank's shard, by rank."""
    evaluation: str | None
    """Path of the tokenised evaluation set; None without one."""
    dataset_digest: str
    threads: int
    """CPU threads of PyTorch."""
    ledger_location: LedgerLocation | None = None
    """Where the ledger is in a cluster; None: in the run's folder."""
    signing_key: str | None = None
    """The file, or PKCS #11 URI, of the key with which rank 0 signs checkpoints; None: they are not signed."""
    recipients_file: str | None = None
    """The file with the recipients of a ConfigMap, for whom checkpoints are encrypted; None: the job has them."""
    identity_file: str | None = None
    """The file of the identity that decrypts checkpoints; None: there is none."""
    mounts: str | None = None
    """Folder in which the PVCs of pvc:// URIs are mounted; None: nothing is mounted."""
    last_failure: str = ""
    """A sentence on how the incarnation before this one failed; empty in the first one of a call."""

    def pack(self) -> dict[str, Any]:
        """The parameters as plain values, which Ray sends to the workers."""
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
        return Path(self.key_file).read_bytes()

    def traceback_file(self, process: str) -> Path:
        """The file for tracebacks of `process`, such as `rank0`."""
        return Path(self.private_directory) / TRACEBACKS.format(process=process)


def counted_records_remark(mechanism: Mechanism, unit_at_least: int) -> tuple[str, ...]:
    """The statement's remark on a job whose number of records was counted; empty where a bound was given."""
    return (COUNTED_RECORDS_REMARK.format(count=unit_at_least),) if mechanism.adjacency == "ZeroOut" else ()


def append_traceback(path: Path, attempt: int) -> str:
    """Append the traceback of the current exception to `path`, which only its owner can read.

    Returns the end of a sentence that names the file. It is empty where the file cannot be written, which hides no
    error.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
            file.write(f"{time.ctime()}{_attempt_line(attempt)}{traceback.format_exc()}\n")
    except OSError:
        with suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
        return ""
    return f"; {path} has the traceback"


def tracebacks_of(private_directory: Path, attempt: int) -> list[Path]:
    """The files in which processes of this machine have written tracebacks of an attempt."""
    files = sorted(private_directory.glob(TRACEBACKS.format(process="*")))
    return [path for path in files if _attempt_line(attempt) in path.read_text(errors="replace")]


def _attempt_line(attempt: int) -> str:
    """The end of the line before each traceback."""
    return f", attempt {attempt}\n"
