"""What a run tells while it goes on.

The worker of rank 0 appends these to `events.jsonl` in the run's folder, one JSON object a line; the driver reads them
there and hands them to whoever listens: the terminal, the guide's callbacks, the report. None carries a private figure:
no training loss, no gradient norm, no batch size, no record count. The file outlives a crash, so a resumed run still
shows the evaluations of the run before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from tensafe_api.tasks import METRICS


@dataclass(frozen=True)
class LogRecord:
    """Anything that happened; `time` is in seconds since the epoch."""

    kind: ClassVar[str] = ""
    time: float

    def values(self) -> dict[str, Any]:
        """The fields as a flat JSON object."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """The record with these fields. Raises TypeError where a field is missing or unknown."""
        return cls(**values)


@dataclass(frozen=True)
class Preparing(LogRecord):
    """A stage before the first step: `what` is a sentence for a person ("Reading and tokenising the data set")."""

    kind: ClassVar[str] = "preparing"
    what: str


@dataclass(frozen=True)
class Started(LogRecord):
    """An incarnation begins at `step`: the first one of an attempt, or one after a restart."""

    kind: ClassVar[str] = "started"
    attempt: int
    incarnation: int
    step: int


@dataclass(frozen=True)
class Stepped(LogRecord):
    """`step` steps are done, `charged` were charged over all attempts."""

    kind: ClassVar[str] = "stepped"
    step: int
    charged: int


@dataclass(frozen=True)
class Evaluated(LogRecord):
    """The mean loss and the metrics (`tensafe_api.tasks`, by name) of the evaluation set after `step` steps."""

    kind: ClassVar[str] = "evaluated"
    step: int
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The metrics stand beside the other fields; `accuracy` is always there, null where it was not measured."""
        return {"time": self.time, "step": self.step, "loss": self.loss, "accuracy": None, **self.metrics}

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """The record of a line; a metric that this version does not know is left out."""
        rest = dict(values)
        metrics = {name: rest.pop(name, None) for name in METRICS}
        known = {name: value for name, value in metrics.items() if value is not None}
        return cls(rest["time"], rest["step"], rest["loss"], known)

    @property
    def main_metric(self) -> tuple[str, float] | None:
        """The title and the value of the most telling metric; None where there is only the loss."""
        return next(((METRICS[name].title, self.metrics[name]) for name in METRICS if name in self.metrics), None)


@dataclass(frozen=True)
class Saved(LogRecord):
    """A checkpoint was written and recorded, when `charged` steps were charged over all attempts."""

    kind: ClassVar[str] = "saved"
    step: int
    uri: str
    digest: str
    final: bool
    charged: int


@dataclass(frozen=True)
class Ended(LogRecord):
    """The workers are done: `reason` is one of `tensafe_api.reasons`, `message` a sentence."""

    kind: ClassVar[str] = "ended"
    attempt: int
    reason: str
    message: str


Listener = Callable[[LogRecord], None]

_KINDS: dict[str, type[LogRecord]] = {
    event.kind: event for event in (Preparing, Started, Stepped, Evaluated, Saved, Ended)
}


class RunLog:
    """Appends events to a file. A line is one write, so readers never see half of one that is followed by another."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: LogRecord) -> None:
        line = json.dumps({"kind": event.kind, **event.values()}) + "\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        os.close(self._file)


class RunLogReader:
    """Reads what was appended since the last call."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> Iterator[LogRecord]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                event = _parse(line)
                if event is not None:
                    yield event


def steps_charged_in(path: Path) -> int:
    """The most steps that an event log says were charged; 0 where it tells of none or is not there."""
    return max((event.charged for event in RunLogReader(path).read() if isinstance(event, (Stepped, Saved))), default=0)


def _parse(line: bytes) -> LogRecord | None:
    """The event of one line; None for a line that a kill tore before another writer appended to it."""
    try:
        values: dict[str, Any] = json.loads(line)
        event = _KINDS[values.pop("kind")].from_values(values)
        whole = (getattr(event, each.name) for each in fields(event) if each.type == "int")
        return event if all(isinstance(value, int) for value in whole) else None
    except (ValueError, KeyError, TypeError):
        return None
