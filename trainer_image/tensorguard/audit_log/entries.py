"""The entries of an audit log: the closed set of events, their public fields, and the chain of hashes.

An entry is one line of canonical JSON. It holds its number, the hash of the previous line, and the hash of its own
content. So a changed, removed, added or moved line does not fit its neighbours. The chain has no key: a person who may
write to the file can compute a new one. It is anchored outside: each charge names the ledger's head, and each
checkpoint names the log's head.

Only the fields in `FIELDS` can be written. None of them is computed from a record, and there is no free field.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tensafe_api.statement.contents import canonical_json
from tensafe_api.timestamps import format_time

NO_HASH = "0" * 64
"""The hash before the first entry."""


class Event(StrEnum):
    """What an entry records. Events are added, but never renamed."""

    OPEN = "Open"
    """The ledger was opened with the privacy values of the job."""
    START = "Start"
    """The workers acquired the ledger for the first time."""
    RESUME = "Resume"
    """The workers acquired the ledger again: a restart, or a new attempt."""
    DATASET = "Dataset"
    """The ledger recorded the keyed digest of the data set."""
    MODEL = "Model"
    """The ledger recorded the base model."""
    KEY_AGREEMENT = "KeyAgreement"
    """The workers agreed on the keys of their masks."""
    CHARGE = "Charge"
    """The ledger was charged for steps, before the first of them was revealed."""
    EVALUATION = "Evaluation"
    """The model was evaluated. The result is not in this log."""
    PUBLICATION = "Publication"
    """The ledger recorded a checkpoint that others can read."""
    INTERRUPTION = "Interruption"
    """The run stopped before its end: on request, or because a process was lost."""
    REFUSAL = "Refusal"
    """The run was not allowed to start or to continue."""
    END = "End"
    """The ledger recorded that no step follows."""


_LEDGER = ("ledgerLength", "ledgerHead")
_RANK_0 = ("attempt", "incarnation")
FIELDS: Mapping[Event, frozenset[str]] = {
    event: frozenset(names)
    for event, names in {
        Event.OPEN: (*_LEDGER, "targetEpsilon", "delta", "plannedSteps"),
        Event.START: (*_LEDGER, *_RANK_0, "step"),
        Event.RESUME: (*_LEDGER, *_RANK_0, "step"),
        Event.DATASET: (*_LEDGER, *_RANK_0, "digest"),
        Event.MODEL: (*_LEDGER, *_RANK_0, "weights", "chatTemplate"),
        Event.KEY_AGREEMENT: (*_RANK_0, "protocol", "workers", "publicKeys"),
        Event.CHARGE: (*_LEDGER, *_RANK_0, "steps", "stepsCharged", "chargedThrough"),
        Event.EVALUATION: (*_RANK_0, "step", "visibility"),
        Event.PUBLICATION: (*_LEDGER, *_RANK_0, "step", "uri", "digest", "statementDigest", "final", "signer"),
        Event.INTERRUPTION: (*_LEDGER, *_RANK_0, "reason", "message"),
        Event.REFUSAL: (*_RANK_0, "reason", "message"),
        Event.END: (*_LEDGER, *_RANK_0, "outcome"),
    }.items()
}
"""The fields of each event. `ledgerLength` and `ledgerHead` are those of the ledger after the recorded write."""
_WRITES = frozenset({event for event in Event if "ledgerLength" in FIELDS[event]} - {Event.INTERRUPTION})
"""The events that always record a write of the ledger. A run may be interrupted without one."""
COMMON = ("number", "time", "event", "job", "jobUID", "actor", "process", "recovered", "previous", "hash")
"""The fields that any entry may have. `recovered`: a later process logged the write of one that was killed."""


class LineInvalid(Exception):
    """A line does not belong where it is. `number`: that of the line, from 1. `problem`: the end of a sentence."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number} {problem}")
        self.number, self.problem = number, problem


@dataclass(frozen=True)
class Entry:
    """One valid line. `values` has all of its fields."""

    number: int
    event: str
    hash: str
    values: Mapping[str, Any]

    @property
    def ledger_length(self) -> int | None:
        """The length of the ledger after the write that this entry records; None for any other entry."""
        length = self.values.get("ledgerLength")
        return length if isinstance(length, int) else None


def make_line(number: int, previous: str, event: Event, values: Mapping[str, Any]) -> bytes:
    """A line without its newline.

    Args:
        number: of the line, from 1.
        previous: hash of the line before it.
        event: what happened.
        values: the fields of the event, and those that any entry has. A field that is None is left out.

    Raises:
        ValueError: a field is not one of the event's.
    """
    if unknown := sorted(values.keys() - FIELDS[event] - set(COMMON)):
        raise ValueError(f"an entry {event} has no field {', '.join(unknown)}")
    known = {name: _clean(value) for name, value in values.items() if value is not None}
    body = {**known, "number": number, "event": event.value, "time": format_time(time.time()), "previous": previous}
    return canonical_json({**body, "hash": _hash(body)})


def read_line(line: bytes, number: int, previous: str) -> Entry:
    """The entry in a line.

    Args:
        line: without its newline.
        number: the place of the line, from 1.
        previous: hash of the line before it.

    Raises:
        LineInvalid: the line was changed, or another line belongs here.
    """
    try:
        values = json.loads(line)
        body = {name: value for name, value in values.items() if name != "hash"}
        intact = values["hash"] == _hash(body) and canonical_json(values) == line
        event = str(values["event"])
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise LineInvalid(number, "is no entry of an audit log: it was changed or cut") from None
    if not intact:
        raise LineInvalid(number, "was changed: its hash is not that of its content")
    if values.get("number") != number or values.get("previous") != previous:
        raise LineInvalid(number, "does not follow from the line before it: a line was removed, added or moved")
    return Entry(number, event, values["hash"], values)


def check_fields(entry: Entry) -> None:
    """Check that an entry has the fields of its event, and that a write of the ledger names its place there.

    A line without that place would look like a charge or a publication, and be compared with no ledger.

    Raises:
        LineInvalid: it has another field, or lacks the place.
    """
    if entry.event not in FIELDS:
        raise LineInvalid(entry.number, f"records {entry.event!r}, which is no event of this release")
    event, values = Event(entry.event), entry.values
    if extra := sorted(values.keys() - FIELDS[event] - set(COMMON)):
        raise LineInvalid(entry.number, f"({event}) has the field {extra[0]}, which its event has not")
    length, head = values.get("ledgerLength"), values.get("ledgerHead")
    is_write = event in _WRITES or length is not None or head is not None
    if is_write and not (type(length) is int and isinstance(head, str)):
        raise LineInvalid(entry.number, f"({event}) does not name the entry of the ledger that it records")


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body)).hexdigest()


def _clean(value: Any) -> Any:
    """Text without lone surrogates, which a path may have, and which UTF-8 cannot encode."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
