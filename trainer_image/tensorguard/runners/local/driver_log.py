"""What the driver of a local run writes to the logs of its run folder, and reads from them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.runners.local.audit import log_failure
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import Ended, Preparing, RunLog, RunLogReader

log = logging.getLogger(__name__)


class DriverLog:
    """The logs of one call of `run`.

    It reads the records of this call only. An attempt that never acquired the ledger and the next one have the same
    number, so the number alone does not distinguish them.

    Args:
        job: with the UID of the run.
        directory: the run's folder.
        attempt: of this call.
    """

    def __init__(self, job: TenSafeTrainingJob, directory: Path, attempt: int) -> None:
        self._job, self._directory, self._attempt = job, directory, attempt
        self._records = RunLogReader(directory / RUN_LOG, from_end=True)
        self._log = RunLog(directory / RUN_LOG)

    def write_stage(self, what: str) -> None:
        """Log what the driver does next, before the workers start."""
        self._log.write(Preparing(time.time(), what))

    def write_end(self, reason: Reason, message: str) -> Ended:
        """Log how the attempt ended, in the audit log too if it failed; return the record.

        A log that cannot be written, because a disk is full, does not hide the reason.
        """
        ended = Ended(time.time(), self._attempt, reason.value, message)
        try:
            self._log.write(ended)
        except OSError as error:
            log.warning("the run log has no entry of this end: %s", error)
        log_failure(self._job, self._directory, self._attempt, reason, message)
        return ended

    def logged_end(self) -> Ended | None:
        """The end of this attempt as rank 0 logged it since the last call; None where it did not."""
        return next((record for record in self._records.read() if isinstance(record, Ended)), None)

    def close(self) -> None:
        self._log.close()
