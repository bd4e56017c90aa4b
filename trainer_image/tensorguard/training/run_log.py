"""The log of a run: one record for each start, step, evaluation, checkpoint and end.

The worker of rank 0 appends records to `events.jsonl` in the run's folder, one JSON object per line. The driver reads
them there and passes them to its listeners: the terminal, the callbacks of the Python API, the report. No record
carries a private figure: no training loss, no gradient norm, no batch size, no record count. The file survives a crash,
so a resumed run still shows the evaluations of the run before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from tensafe_api.tasks import METRICS
from tensorguard.disk_full import names_file


@dataclass(frozen=True)
class LogRecord:
    """One record. Subclasses add fields, whose names are the keys in the file.

    Attributes:
        kind: value of the key "kind" in the file.
        time: seconds since the epoch.
    """

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
    """A stage before the first step has started. `what` names it for users ("Reading and tokenising the data set")."""

    kind: ClassVar[str] = "preparing"
    what: str


@dataclass(frozen=True)
class Started(LogRecord):
    """An incarnation has started at `step`: the first one of an attempt, or one after a restart."""

    kind: ClassVar[str] = "started"
    attempt: int
    incarnation: int
    step: int


@dataclass(frozen=True)
class Stepped(LogRecord):
    """`step` steps are done, and `charged` steps are charged over all attempts."""

    kind: ClassVar[str] = "stepped"
    step: int
    charged: int


@dataclass(frozen=True)
class Evaluated(LogRecord):
    """The mean loss and the metrics (`tensafe_api.tasks`, by name) on the evaluation set after `step` steps."""

    kind: ClassVar[str] = "evaluated"
    step: int
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The metrics are keys of their own; `accuracy` is always present, null where it was not measured."""
        return {"time": self.time, "step": self.step, "loss": self.loss, "accuracy": None, **self.metrics}

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """The record in a line; a metric that this version does not know is left out."""
        rest = dict(values)
        metrics = {name: rest.pop(name, None) for name in METRICS}
        known = {name: value for name, value in metrics.items() if value is not None}
        return cls(rest["time"], rest["step"], rest["loss"], known)

    @property
    def main_metric(self) -> tuple[str, float] | None:
        """The title and the value of the most important metric; None where there is only the loss."""
        return next(((METRICS[name].title, self.metrics[name]) for name in METRICS if name in self.metrics), None)


@dataclass(frozen=True)
class Saved(LogRecord):
    """A checkpoint was written and recorded while `charged` steps were charged over all attempts."""

    kind: ClassVar[str] = "saved"
    step: int
    uri: str
    digest: str
    final: bool
    charged: int


@dataclass(frozen=True)
class Ended(LogRecord):
    """The attempt has ended. `reason` is one of `tensafe_api.reasons`, `message` a sentence."""

    kind: ClassVar[str] = "ended"
    attempt: int
    reason: str
    message: str


Listener = Callable[[LogRecord], None]

_KINDS: dict[str, type[LogRecord]] = {
    record.kind: record for record in (Preparing, Started, Stepped, Evaluated, Saved, Ended)
}


class RunLog:
    """Appends records to a file.

    Each line is written by one call, so a reader never sees half a line that is followed by another one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, record: LogRecord) -> None:
        line = json.dumps({"kind": record.kind, **record.values()}) + "\n"
        with names_file(self._path):
            os.write(self._file, line.encode())

    def close(self) -> None:
        os.close(self._file)


class AppendedLines:
    """Reads the whole lines that were appended to a file since its last call.

    Args:
        path: the file, which may not exist yet.
        from_end: skip the lines that the file holds now.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> Iterator[bytes]:
        """The lines, each with its newline."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line


class RunLogReader:
    """Reads the records that were appended to a run log since its last call; the arguments are `AppendedLines`'."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._lines = AppendedLines(path, from_end=from_end)

    def read(self) -> Iterator[LogRecord]:
        return (record for line in self._lines.read() if (record := _parse(line)) is not None)


def steps_charged_in(path: Path) -> int:
    """The highest number of charged steps in a run log; 0 where it records none or does not exist."""
    records = RunLogReader(path).read()
    return max((record.charged for record in records if isinstance(record, (Stepped, Saved))), default=0)


def _parse(line: bytes) -> LogRecord | None:
    """The record in one line; None for a line that was cut by a kill before another writer appended to it."""
    try:
        values: dict[str, Any] = json.loads(line)
        record = _KINDS[values.pop("kind")].from_values(values)
        integers = (getattr(record, each.name) for each in fields(record) if each.type == "int")
        return record if all(isinstance(value, int) for value in integers) else None
    except (ValueError, KeyError, TypeError):
        return None
