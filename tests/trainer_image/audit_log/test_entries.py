"""One line of an audit log: its fields, and its place in the chain."""

from __future__ import annotations

import json

import pytest

from tensorguard.audit_log.entries import COMMON, FIELDS, NO_HASH, Event, LineInvalid, make_line, read_line

CHARGE = {
    "job": "claims",
    "jobUID": "uid-1",
    "actor": "ada@laptop/17",
    "process": "rank 0",
    "ledgerLength": 5,
    "ledgerHead": "ab" * 32,
    "attempt": 1,
    "incarnation": 2,
    "steps": 3,
    "stepsCharged": 10,
    "chargedThrough": 10,
}
PRIVATE = {"loss", "trainingLoss", "gradientNorm", "clippedFraction", "batchSize", "units", "records", "count", "key"}
"""What /docs/concepts calls exact functions of private data, and secrets."""


def test_line_is_read_as_it_was_written() -> None:
    entry = read_line(make_line(7, "cd" * 32, Event.CHARGE, CHARGE), 7, "cd" * 32)
    assert (entry.number, entry.event, entry.ledger_length) == (7, "Charge", 5)
    assert {name: entry.values[name] for name in CHARGE} == CHARGE
    assert entry.values["time"].endswith("Z")


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_private_value_cannot_be_written(name: str) -> None:
    for event in Event:
        with pytest.raises(ValueError, match=f"has no field {name}"):
            make_line(1, NO_HASH, event, {name: 1})


def test_every_event_has_declared_fields_and_none_is_private() -> None:
    assert set(FIELDS) == set(Event)
    assert not PRIVATE & {name for names in FIELDS.values() for name in (*names, *COMMON)}


def test_line_in_another_place_is_refused() -> None:
    line = make_line(2, "cd" * 32, Event.CHARGE, CHARGE)
    for number, previous in ((3, "cd" * 32), (2, "ef" * 32)):
        with pytest.raises(LineInvalid, match=rf"^line {number} does not follow from the line before it"):
            read_line(line, number, previous)


def test_every_changed_byte_is_noticed() -> None:
    line = make_line(1, NO_HASH, Event.CHARGE, CHARGE)
    for position in range(len(line)):
        for flip in (1, 32, 255):
            changed = bytearray(line)
            changed[position] ^= flip
            with pytest.raises(LineInvalid, match=r"^line 1 "):
                read_line(bytes(changed), 1, NO_HASH)


def test_same_entry_in_other_bytes_is_refused() -> None:
    line = make_line(1, NO_HASH, Event.CHARGE, CHARGE)
    spaced = json.dumps(json.loads(line), sort_keys=True).encode()
    with pytest.raises(LineInvalid, match=r"^line 1 was changed"):
        read_line(spaced, 1, NO_HASH)


@pytest.mark.parametrize("line", [b"", b"[]", b"7", b"\xff", b'{"hash":"\\ud800"}', b"[" * 100_000])
def test_line_that_is_no_entry_is_refused(line: bytes) -> None:
    with pytest.raises(LineInvalid, match=r"^line 1 is no entry of an audit log"):
        read_line(line, 1, NO_HASH)


def test_path_that_utf_8_cannot_encode_is_written() -> None:
    line = make_line(1, NO_HASH, Event.REFUSAL, {"reason": "InvalidManifest", "message": "\udcff is not writable"})
    assert read_line(line, 1, NO_HASH).values["message"] == "? is not writable"
