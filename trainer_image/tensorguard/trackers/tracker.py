"""What a tracker must be able to do. `to_wandb`, `to_mlflow` and `to_tensorboard` implement it.

In come the public facts of one run; out go calls of a tracker's library. Settings come from environment variables, with
the names that Hugging Face's callbacks and the libraries use. Any method may raise any error of the tracker's library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tensorguard.trackers.figures import Point


class TrackerError(Exception):
    """A tracker cannot be used as it is configured. `str()` is a sentence with the fix."""


class Outcome(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Stopped on request: it can be resumed."""
    FAILED = "failed"


Adapters = Literal["false", "end", "checkpoint"]
"""Which adapters are sent: none, the final one, or each published one. The values are those of WANDB_LOG_MODEL."""


@dataclass(frozen=True)
class RunInfo:
    """What a tracker has to know of a run before its first figure.

    Attributes:
        uid: of the job.
        name: of the job; the default of the tracker's display name.
        config: as `figures.public_config` returns it.
    """

    uid: str
    name: str
    config: Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Attachment:
    """Files of one checkpoint, by name: its privacy statement, or its adapter with the statement."""

    kind: Literal["statement", "adapter"]
    step: int
    final: bool
    files: Mapping[str, bytes]

    @property
    def name(self) -> str:
        """A name that differs between the attachments of one run."""
        return self.kind if self.final else f"{self.kind}-step-{self.step}"


class Tracker(Protocol):
    """One run of one tracker."""

    @property
    def destination(self) -> str:
        """Where the run is sent to. It has no secret, since it is stored in the run's folder."""
        ...

    @property
    def adapters(self) -> Adapters:
        """Which adapters the user wants to be sent."""
        ...

    def open(self, run: RunInfo, known: str | None) -> str:
        """Start the tracker's run, or continue the one with the id `known`. Returns its id."""
        ...

    def send(self, points: Sequence[Point]) -> None:
        """Send figures. Their steps never fall."""
        ...

    def attach(self, attachment: Attachment) -> None:
        """Send files."""
        ...

    def close(self, outcome: Outcome) -> None:
        """Wait until everything has arrived, and set the state of the tracker's run."""
        ...


def is_true(value: str | None) -> bool:
    """Whether an environment variable is set to a word that Hugging Face reads as true."""
    return (value or "").strip().upper() in ("1", "ON", "YES", "TRUE")


def without_user(url: str) -> str:
    """`url` without the user name, the password and the query, which may hold a token."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else parts.path
