"""What the driver of a local run adds to the audit log: why a run was refused, or ended without its workers.

The workers write everything else. A log that cannot be written never hides the reason itself.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.audit_log.places import AUDIT_LOG, audit_log_of
from tensorguard.runners.preflight import RunRefused
from tensorguard.training.audit_trail import AuditTrail

log = logging.getLogger(__name__)


def check_audit_log(job: TenSafeTrainingJob, directory: Path) -> None:
    """Refuse to resume a run without its audit log: the log would not show what follows.

    Raises:
        RunRefused: `job` keeps no audit log, and the run in `directory` does.
    """
    if job.spec.observability.audit_log != "Enabled" and (directory / AUDIT_LOG).exists():
        raise RunRefused(
            "spec.observability.auditLog",
            f"the run that is resumed keeps an audit log ({directory / AUDIT_LOG}): pass --audit-log, or write Enabled",
        )


def log_failure(job: TenSafeTrainingJob, directory: Path, attempt: int | None, reason: Reason, message: str) -> None:
    """Log why the run has failed, or was refused, if the job keeps an audit log.

    Args:
        job: with the UID of the run.
        directory: the run's folder.
        attempt: that has failed; None: none was started.
        reason: of the end. One that is no failure is not logged here.
        message: a sentence without records.
    """
    try:
        if job.metadata.uid:
            found = audit_log_of(job, job.metadata.uid, directory, in_pod=False, process="driver")
            AuditTrail(found, attempt).log_failure(reason, message)
    except OSError as error:
        log.warning("the audit log has no entry of this failure: %s", error)
