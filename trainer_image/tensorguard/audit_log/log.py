"""Appends entries to an audit log, and checks what it has already.

In: an event and its fields. Out: one more line, durable when `append` returns. Several processes may append: the holder
of the ledger, and a process that is refused. The loser of a race reads the other's line and tries again.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from typing import Any

from tensorguard.audit_log.entries import NO_HASH, Entry, Event, LineInvalid, make_line, read_line
from tensorguard.audit_log.ledger_events import Position
from tensorguard.audit_log.line_files import Lines
from tensorguard.ledger.backends import POD_UID
from tensorguard.ledger.contract import LedgerCorrupt


class AuditLogCorrupt(LedgerCorrupt):
    """The audit log is not what was written. `str()` is a sentence with the fix."""


class AuditLog:
    """The audit log of one job, as one process sees it. `length` and `head`: of the log, as last read or written."""

    def __init__(
        self,
        lines: Lines,
        *,
        job: str,
        job_uid: str,
        process: str,
        publish: Callable[[str], None] | None = None,
    ) -> None:
        """Refer to a log, without reading it.

        Args:
            lines: where it is.
            job, job_uid: the job that it belongs to.
            process: the part of the job that writes, such as "rank 0".
            publish: called with each line that this process has written.
        """
        self._lines = lines
        self._common = {"job": job, "jobUID": job_uid, "actor": this_actor(), "process": process}
        self._publish = publish
        self.length, self.head = 0, NO_HASH
        self.position = Position()
        """What the log says of the ledger."""

    @property
    def name(self) -> str:
        """The place of the log."""
        return self._lines.name

    def load(self) -> None:
        """Read the lines that other processes have added. Raises AuditLogCorrupt."""
        for line in self._lines.read_new():
            try:
                entry = read_line(line, self.length + 1, self.head)
                self._check_job(entry)
                self._accept(entry)
            except (LineInvalid, KeyError, TypeError) as error:
                raise AuditLogCorrupt(
                    f"{self.name}: {error}; restore the audit log as it was written, or move it away to start a new "
                    "one from the ledger"
                ) from error

    def append(self, event: Event, values: dict[str, Any], *, recovered: bool = False) -> bool:
        """Add an entry. Returns False, and adds nothing, where another process has just logged a write of the ledger.

        Args:
            event: what happened.
            values: the fields of the event; None is left out.
            recovered: whether another process did it, and was killed before it could log it.

        Raises:
            AuditLogCorrupt, AuditLogUnwritable: the log cannot be used.
        """
        fields = {**self._common, **values, **({"recovered": True} if recovered else {})}
        before = self.position
        while "ledgerLength" not in values or self.position == before:
            number = self.length + 1
            line = make_line(number, self.head, event, fields)
            if self._lines.append(number, line):
                self._accept(read_line(line, number, self.head))
                if self._publish is not None:
                    self._publish(line.decode())
                return True
            self.load()
        return False

    def _check_job(self, entry: Entry) -> None:
        """Refuse the log of another job before the ledger is charged: no log of two jobs can be verified."""
        if (entry.values.get("job"), entry.values.get("jobUID")) != (self._common["job"], self._common["jobUID"]):
            raise LineInvalid(entry.number, f"is of another job ({entry.values.get('job')})")

    def _accept(self, entry: Entry) -> None:
        self.position = self.position.after(entry)
        self.length, self.head = entry.number, entry.hash


def this_actor() -> str:
    """Who runs this process: `pod/NAME/UID` in a pod of a cluster, else `USER@HOST/PID`."""
    host = os.uname().nodename
    if pod_uid := os.environ.get(POD_UID):
        return f"pod/{host}/{pod_uid}"
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = str(os.getuid())
    return f"{user}@{host}/{os.getpid()}"
