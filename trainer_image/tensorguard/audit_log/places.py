"""Where the audit log of a job is.

On one machine, and on the nodes of a Ray cluster, it is a file in the run's folder. The folder of a pod ends with the
pod, so there the log is beside the checkpoints, under the UID of the job: a file on a PVC, objects in an object store.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.audit_log.line_files import LineFile, Lines
from tensorguard.audit_log.line_objects import LineObjects
from tensorguard.audit_log.log import AuditLog
from tensorguard.storage import filesystem_options

AUDIT_LOG = "audit.jsonl"
"""The file in the run's folder."""
LOGGER = logging.getLogger("tensafe.audit")
"""Receives each line as a message at level INFO."""


def audit_log_of(job: TenSafeTrainingJob, uid: str, directory: Path, *, in_pod: bool, process: str) -> AuditLog | None:
    """The audit log of a job, not yet read; None where the job keeps none.

    Args:
        job: the job.
        uid: of the job.
        directory: the run's folder.
        in_pod: whether this process runs in a pod of the operator. Then each line goes to `LOGGER`, too.
        process: the part of the job that writes.
    """
    if not keeps_audit_log(job, directory):
        return None
    return AuditLog(
        _beside_checkpoints(job, uid) if in_pod else LineFile(directory / AUDIT_LOG),
        job=job.metadata.name,
        job_uid=uid,
        process=process,
        publish=_to_handlers if in_pod else None,
    )


def keeps_audit_log(job: TenSafeTrainingJob, directory: Path) -> bool:
    """Whether the job keeps an audit log, or the run in `directory` has one already."""
    return job.spec.observability.audit_log == "Enabled" or (directory / AUDIT_LOG).exists()


def _to_handlers(line: str) -> None:
    """Pass a line to the handlers of `LOGGER`, also below its level: no program in a pod configures that."""
    LOGGER.handle(LOGGER.makeRecord(LOGGER.name, logging.INFO, __name__, 0, line, (), None))


def _beside_checkpoints(job: TenSafeTrainingJob, uid: str) -> Lines:
    name = f"{job.spec.checkpoint.uri.rstrip('/')}/audit-{uid}"
    _, options = filesystem_options(name, job.spec.storage)
    fs, path = url_to_fs(name, **options)
    return LineFile(Path(f"{path}.jsonl")) if isinstance(fs, LocalFileSystem) else LineObjects(name, options)
