"""Exports one run to one tracker: everything that was not sent before, and whatever follows while the run continues.

In come a `History`, a `Tracker` and the file that remembers what was sent. What is to be sent is on the disk, in the
log of the run. So nothing is lost if a tracker is slow or unavailable: this export or the next one sends it later.
While a run continues, the tracker gets its figures at fixed times, which say nothing about the duration of a step.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tensorguard.checkpoint.store import CheckpointError
from tensorguard.trackers.attachments import Checkpoint, read_attachment
from tensorguard.trackers.figures import TIME_GRAIN_SECONDS, Point, public_config
from tensorguard.trackers.history import History
from tensorguard.trackers.sent import Sent, SentFile
from tensorguard.trackers.tracker import Attachment, Outcome, RunInfo, Tracker

_POLL_SECONDS = 1
_SECRET_IN_URL = re.compile(r"(?<=://)[^/@\s]*@")


@dataclass
class Export:
    """One export.

    Attributes:
        report: prints one line for the user.
        wait: waits for some seconds; tests replace it.
    """

    history: History
    tracker: Tracker
    file: SentFile
    report: Callable[[str], None]
    wait: Callable[[float], None] = time.sleep
    _points: list[Point] = field(default_factory=list)
    _checkpoints: list[Checkpoint] = field(default_factory=list)

    def run(self, *, follow: bool) -> None:
        """Send what was not sent before. follow: continue until the run has ended.

        Raises:
            TrackerError: another process exports this run to this tracker.
            LedgerError: the ledger was edited, so the ε of the run is not known.
            Exception: any error of the tracker's library. While the run continues such an error is only reported, and
                what could not be sent is tried again.
        """
        job = self.history.job
        with self.file.locked():
            sent = self.file.load(job.metadata.uid or "", self.tracker.destination)
            config = public_config(job, self.history.plan)
            sent.run = self.tracker.open(RunInfo(sent.job, job.metadata.name, config), sent.run)
            self.file.save(sent)
            while follow and self._is_running():
                self._try_to_send(sent)
            self._send(sent)
            closing = self.history.closing_point()
            if closing is not None and not closing.figures.items() <= sent.latest.items():
                self.tracker.send([closing])
                sent.latest |= closing.figures
                self.file.save(sent)
            self.tracker.close(self.history.outcome())

    def _is_running(self) -> bool:
        """Wait until it is time to send again. Returns False as soon as the run has ended."""
        for _ in range(TIME_GRAIN_SECONDS // _POLL_SECONDS):
            if self.history.outcome() is not Outcome.RUNNING:
                return False
            self.wait(_POLL_SECONDS)
        return True

    def _try_to_send(self, sent: Sent) -> None:
        try:
            self._send(sent)
        except Exception as error:
            self.report(f"{first_line(error)}; trying again")

    def _send(self, sent: Sent) -> None:
        self._points += (point for point in self.history.new_points() if point.number > sent.points)
        if self._points:
            self.tracker.send(self._points)
            sent.points = self._points[-1].number
            for point in self._points:
                sent.latest |= point.figures
            self.file.save(sent)
            self._points = []
        self._checkpoints += self.history.new_checkpoints()
        for attachment in self._attachments(sent):
            self.tracker.attach(attachment)
            sent.attachments.append(attachment.name)
            self.file.save(sent)
        self._checkpoints = []

    def _attachments(self, sent: Sent) -> Iterator[Attachment]:
        """What is to be attached and was not: the final statement, and the adapters that the user wants."""
        adapters: dict[str, Callable[[Checkpoint], bool]] = {
            "false": lambda checkpoint: False,
            "end": lambda checkpoint: checkpoint.final,
            "checkpoint": lambda checkpoint: True,
        }
        for checkpoint in self._checkpoints:
            kinds: list[Literal["statement", "adapter"]] = ["statement"] if checkpoint.final else []
            if adapters[self.tracker.adapters](checkpoint):
                kinds.append("adapter")
            for kind in kinds:
                if Attachment(kind, checkpoint.step, checkpoint.final, {}).name in sent.attachments:
                    continue
                try:
                    yield read_attachment(self.history.job, checkpoint, kind)
                except (CheckpointError, ImportError, ValueError, OSError) as error:
                    # For example, a newer checkpoint has replaced it, or its storage cannot be reached from here.
                    self.report(f"the {kind} of step {checkpoint.step} is not attached: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without the password that a URL in it may have."""
    message = str(error).strip() or type(error).__name__
    return _SECRET_IN_URL.sub("", message.splitlines()[0])
