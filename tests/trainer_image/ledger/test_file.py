"""The file ledger: interrupted writes, edits, locks, full disks and kills."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.ledger import file as module
from tensorguard.ledger.contract import Fenced, LedgerBusy, LedgerCorrupt, LedgerError, LedgerState
from tensorguard.ledger.file import NAME, FileLedger


def used(directory: Path, spec: LedgerSpec) -> tuple[FileLedger, list[LedgerState]]:
    """A ledger with one acquisition and three charges, and each of its states."""
    ledger = FileLedger.create(directory, spec)
    states = [ledger.read(), ledger.acquire(attempt=1, from_step=0)]
    states += [ledger.charge(steps) for steps in (1, 5, 10)]
    return ledger, states


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


def test_ledger_rolled_back_while_it_is_held_is_refused(tmp_path: Path, spec: LedgerSpec) -> None:
    ledger, _ = used(tmp_path, spec)
    text = (tmp_path / NAME).read_bytes()
    ledger.charge(3)
    with (tmp_path / NAME).open("r+b") as file:  # the same inode, so that the lock is kept
        file.truncate(len(text))
    for use in (ledger.read, lambda: ledger.charge(1), lambda: ledger.record_outcome("Completed")):
        with pytest.raises(LedgerCorrupt, match="was changed while in use"):
            use()
    ledger.close()


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
    entry = {**body, "number": 6, "previous": head}
    canonical = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
    entry["hash"] = hashlib.sha256(canonical).hexdigest()
    line = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    (tmp_path / NAME).write_bytes(b"".join(lines) + line)
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
        '{"adjacency":"AddOrRemoveOne","clip":"1.0","colluders":0,"expectedBatchSize":200,"gridBits":20,'
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


def test_incarnations_are_counted_within_an_attempt(tmp_path: Path, spec: LedgerSpec) -> None:
    ledger = FileLedger.create(tmp_path, spec)
    acquired = [ledger.acquire(attempt=attempt, from_step=0) for attempt in (1, 1, 2, 2, 5)]
    assert [state.incarnation for state in acquired] == [1, 2, 1, 2, 1]


def test_process_whose_acquisition_failed_cannot_charge(
    tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock. But its charge would count as one of the attempt before."""
    earlier, states = used(tmp_path, spec)
    earlier.close()
    ledger = FileLedger(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_space)
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.acquire(attempt=2, from_step=0)
    with pytest.raises(Fenced):
        ledger.charge(1)
    assert ledger.read() == states[-1]


def test_ledger_that_was_removed_while_in_use_is_not_written_elsewhere(tmp_path: Path, spec: LedgerSpec) -> None:
    ledger, _ = used(tmp_path, spec)
    (tmp_path / NAME).unlink()
    with pytest.raises(LedgerCorrupt, match="was moved or replaced while in use"):
        ledger.charge(1)
    assert not (tmp_path / NAME).exists()


def acquire_in_child(directory: Path) -> int:
    """Fork a process that acquires the ledger and waits to be killed. Returns its process id."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        try:
            FileLedger(directory).acquire(attempt=1, from_step=0)
            os.write(sender, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(sender)
    assert os.read(receiver, 1) == b"x"
    os.close(receiver)
    return child


def test_second_process_is_locked_out_until_the_first_ends(tmp_path: Path, spec: LedgerSpec) -> None:
    FileLedger.create(tmp_path, spec)
    child = acquire_in_child(tmp_path)
    ledger = FileLedger(tmp_path)
    try:
        with pytest.raises(LedgerBusy, match="another run is using"):
            ledger.acquire(attempt=1, from_step=0)
        with pytest.raises(LedgerBusy):
            ledger.wait_until_free()
        assert ledger.read().charges[0].holder.endswith(f"/{child}")
        assert ledger.read().length == 2
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ledger.acquire(attempt=1, from_step=0).incarnation == 2


def test_acquire_waits_for_a_holder_that_is_terminating(
    tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = FileLedger.create(tmp_path, spec)
    holder.acquire(attempt=1, from_step=0)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            holder.close()

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(waits), time=lambda: 0.0))
    waiting = FileLedger(tmp_path, lock_wait_seconds=1.0)
    waiting.wait_until_free()
    assert waiting.acquire(attempt=1, from_step=0).incarnation == 2
    assert len(waits) == 3
    with pytest.raises(LedgerBusy):
        FileLedger(tmp_path, lock_wait_seconds=0.2).wait_until_free()
    waits.clear()
    with pytest.raises(LedgerBusy):
        FileLedger(tmp_path).wait_until_free()
    assert waits == [], "by default a held lock is reported at once"


def test_lock_is_on_the_ledger_file_itself(tmp_path: Path, spec: LedgerSpec) -> None:
    """The lock cannot be removed separately. A user who replaces the ledger to avoid it is detected by the holder."""
    first, _ = used(tmp_path, spec)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.jsonl"]
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "ledger.jsonl").read_bytes())
    copy.replace(tmp_path / "ledger.jsonl")
    with pytest.raises(LedgerCorrupt, match="was moved or replaced while in use"):
        first.charge(1)


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


class Killed(BaseException):
    """Stands for kill -9: no exception handler catches it."""


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_process_killed_while_creating_leaves_no_ledger(
    call: str, tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, call, kill)
        with pytest.raises(Killed):
            FileLedger.create(tmp_path, spec)
    assert not (tmp_path / NAME).exists()
    FileLedger.create(tmp_path, spec)


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_failed_creation_is_reported_and_leaves_no_file(
    call: str, tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space_left(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, no_space_left)
    with pytest.raises(LedgerError, match=r"cannot be created: .*No space left"):
        FileLedger.create(tmp_path, spec)
    assert list(tmp_path.iterdir()) == []


def test_creation_in_an_absent_directory_is_reported(tmp_path: Path, spec: LedgerSpec) -> None:
    with pytest.raises(LedgerError, match="cannot be created"):
        FileLedger.create(tmp_path / "absent", spec)


def no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


REAL_WRITE = os.write
FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a short write": ("write", lambda descriptor, line: REAL_WRITE(descriptor, line[:40])),
    "no write": ("write", no_space),
    "no sync": ("fsync", no_space),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_charge_that_does_not_reach_the_disk_fails_without_a_trace(
    fault: str, tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, states = used(tmp_path, spec)
    with monkeypatch.context() as patch:
        patch.setattr(os, *FAULTS[fault])
        with pytest.raises(LedgerError, match=r"cannot be written: .*; free space on the disk and resume"):
            ledger.charge(100)
    assert ledger.read() == states[-1]
    assert ledger.charge(2).steps_charged == 18


def test_process_killed_while_charging_leaves_the_charge_or_no_trace(
    tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the process is killed before the sync, the line may exist. Then it counts, though no step was revealed."""
    ledger, states = used(tmp_path, spec)

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", kill)
        with pytest.raises(Killed):
            ledger.charge(100)
    ledger.close()
    assert FileLedger(tmp_path).read().steps_charged in (16, 116)
    assert FileLedger(tmp_path).extends(states[-1].head, states[-1].length)


def test_charge_is_on_the_disk_when_it_returns(
    tmp_path: Path, spec: LedgerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, _ = used(tmp_path, spec)
    synced: list[bytes] = []
    real = os.fsync

    def sync(descriptor: int) -> None:
        real(descriptor)
        assert os.fstat(descriptor).st_ino == (tmp_path / NAME).stat().st_ino
        synced.append((tmp_path / NAME).read_bytes())

    monkeypatch.setattr(os, "fsync", sync)
    ledger.charge(9)
    assert synced == [(tmp_path / NAME).read_bytes()]
