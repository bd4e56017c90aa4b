"""What is in the ledger's file: its format and its chain, interrupted lines and edits."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.ledger import file as module
from tensorguard.ledger.contract import LedgerCorrupt
from tensorguard.ledger.file import NAME, FileLedger
from tests.support.ledger_files import used


@pytest.fixture
def lines(tmp_path: Path, spec: LedgerSpec) -> list[bytes]:
    ledger, _ = used(tmp_path, spec)
    ledger.close()
    return (tmp_path / NAME).read_bytes().splitlines(keepends=True)


def test_last_line_cut_anywhere_is_ignored(tmp_path: Path, spec: LedgerSpec) -> None:
    ledger, states = used(tmp_path, spec)
    ledger.close()
    text = (tmp_path / NAME).read_bytes()
    last = text.rfind(b"\n", 0, len(text) - 1) + 1
    for length in range(last, len(text) - 1):
        (tmp_path / NAME).write_bytes(text[:length])
        assert FileLedger(tmp_path).read() == states[-2]


def test_entry_that_lacks_only_its_newline_counts(tmp_path: Path, spec: LedgerSpec) -> None:
    """A process may have relied on it. The next holder adds the newline."""
    ledger, states = used(tmp_path, spec)
    ledger.close()
    text = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(text[:-1])
    after = FileLedger(tmp_path)
    assert after.read() == states[-1]
    after.acquire(attempt=1, from_step=16)
    assert after.charge(1).steps_charged == states[-1].steps_charged + 1
    assert (tmp_path / NAME).read_bytes().startswith(text)


@pytest.mark.parametrize("interrupted", [b"{", b'{"kind":"charge","steps":10', b"\xff\xfe", b"\0" * 100])
def test_next_holder_removes_an_interrupted_line_and_continues(
    interrupted: bytes, tmp_path: Path, spec: LedgerSpec
) -> None:
    ledger, states = used(tmp_path, spec)
    ledger.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(interrupted)
    after = FileLedger(tmp_path)
    assert after.read() == states[-1]
    assert after.acquire(attempt=1, from_step=16).length == states[-1].length + 1
    assert after.charge(1).steps_charged == 17
    assert len((tmp_path / NAME).read_bytes().split(b"\n")) - 1 == states[-1].length + 2
    assert FileLedger(tmp_path).read().steps_charged == 17


@pytest.mark.slow
def test_every_changed_byte_in_the_middle_is_refused(tmp_path: Path, lines: list[bytes]) -> None:
    text = b"".join(lines)
    ledger = FileLedger(tmp_path)
    for place in range(len(text) - len(lines[-1])):
        for bit in (1 << place % 8, *((0x07,) if text[place] == 0x0A else ())):  # 0x0A becomes a carriage return
            changed = bytearray(text)
            changed[place] ^= bit
            (tmp_path / NAME).write_bytes(changed)
            with pytest.raises(LedgerCorrupt, match=r"was edited: entry \d+ does not follow"):
                ledger.read()


def test_every_changed_byte_in_the_last_line_is_refused(tmp_path: Path, lines: list[bytes]) -> None:
    """Its newline is excepted: without it the line counts as interrupted by a crash, and `extends` detects this."""
    start = len(b"".join(lines[:-1]))
    text = b"".join(lines)
    for place in range(start, len(text) - 1):
        changed = bytearray(text)
        changed[place] ^= 1 << place % 8
        (tmp_path / NAME).write_bytes(changed)
        with pytest.raises(LedgerCorrupt, match="entry 5 does not follow"):
            FileLedger(tmp_path).read()


def rewritten(lines: list[bytes], number: int, change: Callable[[dict[str, Any]], None]) -> list[bytes]:
    entry = json.loads(lines[number])
    change(entry)
    return [*lines[:number], json.dumps(entry, sort_keys=True, separators=(",", ":")).encode() + b"\n"]


EDITS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "two lines exchanged": lambda lines: [*lines[:2], lines[3], lines[2], lines[4]],
    "a line missing": lambda lines: [*lines[:2], *lines[3:]],
    "the first line missing": lambda lines: lines[1:],
    "a line repeated": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "the last line repeated": lambda lines: [*lines, lines[-1]],
    "an empty line": lambda lines: [*lines[:2], b"\n", *lines[2:]],
    "a space": lambda lines: [*lines[:2], b" " + lines[2], *lines[3:]],
    "a carriage return": lambda lines: [*lines[:2], lines[2].replace(b"\n", b"\r\n"), *lines[3:]],
    "a key twice": lambda lines: [*lines[:3], lines[3].replace(b"{", b'{"steps":1,', 1), *lines[4:]],
    "fewer steps": lambda lines: rewritten(lines, 3, lambda entry: entry.update(steps=1)) + lines[4:],
    "no hash": lambda lines: rewritten(lines, 3, lambda entry: entry.pop("hash")) + lines[4:],
    "a list": lambda lines: [*lines, b"[]\n"],
    "a number": lambda lines: [*lines, b"7\n"],
    "NaN": lambda lines: [*lines, b'{"hash":NaN}\n'],
    "bytes that are not UTF-8": lambda lines: [*lines, b"\xff\xfe\n"],
    "half a surrogate pair": lambda lines: [*lines, b'{"hash":"\\ud800","previous":"","number":6}\n'],
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_ledger_is_refused(edit: str, tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / NAME).write_bytes(b"".join(EDITS[edit](lines)))
    ledger = FileLedger(tmp_path)
    for use in (
        ledger.read,
        lambda: ledger.extends("0" * 64, 1),
        lambda: ledger.acquire(attempt=2, from_step=0),
    ):
        with pytest.raises(LedgerCorrupt, match="was edited"):
            use()
    FileLedger(tmp_path).wait_until_free()  # a refused acquisition keeps no lock


@pytest.mark.parametrize("text", [b"", b"{"])
def test_empty_ledger_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(text)
    with pytest.raises(LedgerCorrupt, match="has no entry"):
        FileLedger(tmp_path).read()


def test_extends_detects_a_tail_that_was_cut_off(tmp_path: Path, spec: LedgerSpec, lines: list[bytes]) -> None:
    seen = FileLedger(tmp_path).read()
    for kept in range(1, len(lines)):
        (tmp_path / NAME).write_bytes(b"".join(lines[:kept]))
        ledger = FileLedger(tmp_path)
        ledger.read()  # the chain alone does not show it
        assert not ledger.extends(seen.head, seen.length)
    ledger.acquire(attempt=1, from_step=0)
    while ledger.read().length < seen.length + 2:
        ledger.charge(1)
    assert not ledger.extends(seen.head, seen.length)


@pytest.mark.parametrize(
    "body", [{"kind": "refund", "steps": 3}, {"kind": "charge", "steps": -3}, {"kind": "charge"}, {}]
)
def test_invalid_entry_is_refused_even_with_a_valid_chain(
    body: dict[str, Any], tmp_path: Path, lines: list[bytes]
) -> None:
    head = json.loads(lines[-1])["hash"]
    (tmp_path / NAME).write_bytes(b"".join(lines) + chained(head, 6, **body))
    with pytest.raises(LedgerCorrupt, match="not a ledger that this version"):
        FileLedger(tmp_path).read()


def chained(previous: str, number: int, **entry: Any) -> bytes:
    """A line of the file with a hash that fits its content."""
    body = {**entry, "previous": previous, "number": number}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    whole = {**body, "hash": hashlib.sha256(text).hexdigest()}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize("follows", ["number", "hash"])
def test_entry_must_follow_by_its_number_and_by_its_hash(follows: str, tmp_path: Path, lines: list[bytes]) -> None:
    head = json.loads(lines[-1])["hash"]
    (tmp_path / NAME).write_bytes(b"".join(lines) + chained(head, 6, kind="charge", steps=1))
    assert FileLedger(tmp_path).read().length == 6
    wrong = chained("0" * 64, 6, kind="charge", steps=1) if follows == "number" else chained(head, 7, kind="charge")
    (tmp_path / NAME).write_bytes(b"".join(lines) + wrong)
    with pytest.raises(LedgerCorrupt, match="entry 6 does not follow from the previous ones"):
        FileLedger(tmp_path).read()


def test_format_of_the_file(tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of earlier versions must stay readable: sorted keys, no spaces, UTF-8, times in milliseconds."""
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 1764000000.12345, monotonic=lambda: 0.0))
    ledger = FileLedger.create(tmp_path, spec.model_copy(update={"lineage": "überweisungen"}))
    ledger.acquire(attempt=1, from_step=0)
    ledger.charge(3)
    first, second, third = (tmp_path / NAME).read_bytes().splitlines()
    heads = [json.loads(line)["hash"] for line in (first, second, third)]
    time, holder = "1764000000.123", f"{os.uname().nodename}/{os.getpid()}"
    assert first.decode() == (
        f'{{"hash":"{heads[0]}","kind":"open","number":1,"previous":"{"0" * 64}","spec":{{"accountant":"RDP",'
        '"delta":"0.00001","evaluation":"Nothing","jobName":"claims-triage","jobUID":"3f2a91c0","lineage":"überweisungen","mechanism":'
        '{"adjacency":"AddOrRemoveOne","clip":"1.0","expectedBatchSize":200,"gridBits":20,'
        '"noiseMultiplier":"1.5","sampleRate":"0.04","unit":"User","workers":2},"plannedSteps":2250,'
        f'"privateMetrics":"Hidden","reserveSteps":10,"targetEpsilon":"8","unitAtLeast":5000,"verify":"Standard"}},'
        f'"time":{time}}}'
    )
    assert second.decode() == (
        f'{{"attempt":1,"fromStep":0,"hash":"{heads[1]}","holder":"{holder}","incarnation":1,"kind":"claim",'
        f'"number":2,"previous":"{heads[0]}","time":{time}}}'
    )
    assert third.decode() == (
        f'{{"hash":"{heads[2]}","kind":"charge","number":3,"previous":"{heads[1]}","steps":3,"time":{time}}}'
    )


def test_figure_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        module._canonical({"steps": float("nan")})


def test_ledger_extends_no_head_of_length_zero(tmp_path: Path, lines: list[bytes]) -> None:
    ledger = FileLedger(tmp_path)
    state = ledger.read()
    assert ledger.extends(state.head, state.length)
    assert not ledger.extends(state.head, 0) and not ledger.extends(state.head, -1)


def test_acquire_removes_no_complete_line(tmp_path: Path, spec: LedgerSpec) -> None:
    first, _ = used(tmp_path, spec)
    before = first.read().steps_charged
    first.close()
    size = (tmp_path / "ledger.jsonl").stat().st_size
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"interrupted')
    second = FileLedger(tmp_path)
    assert second.acquire(attempt=1, from_step=0).steps_charged == before
    assert (tmp_path / "ledger.jsonl").read_bytes()[:size].endswith(b"\n")
    assert second.charge(1).steps_charged == before + 1


def test_only_the_owner_may_read_the_ledger(tmp_path: Path, spec: LedgerSpec) -> None:
    FileLedger.create(tmp_path, spec).acquire(attempt=1, from_step=0)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir())


def test_charge_checks_only_new_entries_and_an_edit_of_earlier_ones_is_noticed(
    tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of days charges thousands of times."""
    ledger, _ = used(tmp_path, spec)
    ledger.acquire(attempt=2, from_step=0)
    checked: list[bytes] = []
    check = module._entry
    monkeypatch.setattr(module, "_entry", lambda line, *args: checked.append(line) or check(line, *args))
    for _ in range(20):
        ledger.charge(1)
    assert len({line for line in checked if line}) == len([line for line in checked if line]) == 20
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().replace(b'"steps":1,', b'"steps":0,', 1))
    with pytest.raises(LedgerCorrupt):
        ledger.charge(1)
