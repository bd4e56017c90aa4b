"""The process that holds the ledger's file: locks, full disks and kills."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.ledger import file as module
from tensorguard.ledger.contract import Fenced, LedgerBusy, LedgerCorrupt, LedgerError
from tensorguard.ledger.file import NAME, FileLedger
from tests.support.ledger_files import used


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
