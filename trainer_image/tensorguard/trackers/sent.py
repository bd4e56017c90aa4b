"""Remembers what was sent to a tracker, in `trackers/` of the run's folder.

A resumed run finds the id of its tracker's run here and continues it, and nothing is sent twice. The file holds no
secret. A job of another uid, or another destination, starts from the beginning. One process at a time may send to one
tracker.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tensorguard.trackers.tracker import TrackerError

FOLDER = "trackers"


@dataclass
class Sent:
    """What a tracker has received.

    Attributes:
        job: uid of the job.
        destination: as the tracker names it.
        run: id of the tracker's run; None before it was started.
        points: number of the last point.
        attachments: names of the attachments.
        latest: the last value of each figure, by its key.
    """

    job: str
    destination: str
    run: str | None = None
    points: int = 0
    attachments: list[str] = field(default_factory=list)
    latest: dict[str, float] = field(default_factory=dict)


class SentFile:
    """The file of one tracker."""

    def __init__(self, directory: Path, tracker: str) -> None:
        self.path = directory / FOLDER / f"{tracker}.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to send to this tracker inside the with block.

        Raises:
            TrackerError: another process holds it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TrackerError(
                    f"another process exports {self.path.parent.parent} to {self.path.stem}: wait until it has ended"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def load(self, job: str, destination: str) -> Sent:
        """What this job has sent to this destination: nothing, if the file is missing or about another one."""
        try:
            sent = Sent(**json.loads(self.path.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return Sent(job, destination)
        return sent if (sent.job, sent.destination) == (job, destination) else Sent(job, destination)

    def save(self, sent: Sent) -> None:
        """Replace the file."""
        new = self.path.with_suffix(".new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(sent), file)
        new.replace(self.path)
