"""The ledger as a local file, for runs without Kubernetes.

`ledger.jsonl` holds one entry per line, each with the hash of the previous one, so that an edit in the middle is
detected. A tail that was cut off is detected by the checkpoints, which record the ledger's head and length. A line is
on the disk (fsync) before the call that writes it returns. A last line without a newline was interrupted by a crash
before any process relied on it: readers skip it, and the next holder removes it. The holder has an exclusive lock
(flock, which the system releases when the process ends).

The chain detects accidents and careless edits. A user who may write to the folder can create a whole new chain, so
protect the folder like a key.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensafe_api.resources.ledger import LedgerSpec
from tensafe_api.resources.status import EvaluationResult, Progress
from tensorguard.ledger.contract import (
    Fenced,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerMissing,
    LedgerState,
)
from tensorguard.ledger.fold import Entry, apply_entry, new_state
from tensorguard.ledger.writer import LedgerWriter
from tensorguard.storage import sync_directory

NAME = "ledger.jsonl"
_NO_HEAD = "0" * 64
_LOCK_POLL_SECONDS = 0.05


class FileLedger(LedgerWriter):
    """A ledger in `directory`. Reading needs no lock. `acquire` takes the lock; `close` or the end of the process
    releases it.
    """

    max_checkpoints: int | None = None

    def __init__(self, directory: Path, *, lock_wait_seconds: float = 0.0) -> None:
        """Refer to the ledger of a run, without opening it.

        Args:
            directory: of the run.
            lock_wait_seconds: how long `acquire` waits for a holder that is terminating.
        """
        self._path = directory / NAME
        self._holder = f"{os.uname().nodename}/{os.getpid()}"
        self._lock_wait = lock_wait_seconds
        self._lock: int | None = None
        self._held_as: tuple[int, int] | None = None
        """The attempt and incarnation as which this process has acquired the ledger, or tries to."""
        self._last_written: tuple[str, int] | None = None
        """Head and length after our last entry. No other process may change them while we hold the lock."""
        self._read_before: tuple[bytes, list[dict[str, Any]]] = (b"", [])
        """The lines that were checked, and their entries: a long run reads the ledger thousands of times."""
        self._states: list[LedgerState] = []
        """The states after these entries."""

    @classmethod
    def create(cls, directory: Path, spec: LedgerSpec) -> FileLedger:
        """Open a new ledger. Raises LedgerError if one exists already: charged steps stay charged."""
        ledger = cls(directory)
        line = _line({"kind": "open", "spec": spec.model_dump()}, _NO_HEAD, 0)
        # Written under a temporary name and then linked, so that a ledger exists with its first entry or not at all.
        temporary = directory / f".{NAME}-{os.getpid()}"
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, ledger._path)
            sync_directory(directory)
        except FileExistsError as error:
            raise LedgerError(f"{ledger._path} exists already; resume that run, or choose another directory") from error
        except OSError as error:
            raise LedgerError(
                f"{ledger._path} cannot be created: {error}; choose a directory on a local disk with free space"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        return ledger

    def read(self) -> LedgerState:
        return self.history()[-1]

    def history(self) -> list[LedgerState]:
        """The state after each entry, the newest last. Raises LedgerMissing or LedgerCorrupt."""
        entries, head, _ = self._load()
        if self._last_written is not None and (head, len(entries)) != self._last_written:
            raise LedgerCorrupt(
                f"{self._path} was changed while in use; restore the missing entries, since charged steps stay charged"
            )
        try:
            known = len(self._states)
            if not known or known > len(entries) or self._states[-1].head != entries[known - 1]["hash"]:
                self._states = [new_state(LedgerSpec.model_validate(entries[0]["spec"]), entries[0]["hash"])]
            for entry in entries[len(self._states) :]:
                self._states.append(apply_entry(self._states[-1], entry, entry["hash"]))
            return list(self._states)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerCorrupt(
                f"{self._path} is not a ledger that this version of tensafe can read ({error}); "
                "use the version that wrote it, or restore the file from a copy"
            ) from error

    def extends(self, head: str, length: int) -> bool:
        entries, _, _ = self._load()
        return 0 < length <= len(entries) and entries[length - 1]["hash"] == head

    def acquire(self, *, attempt: int, from_step: int) -> LedgerState:
        self._take_lock()
        try:
            self._drop_torn_line()
            state = self.read()
            if attempt < state.attempt:
                raise Fenced(f"attempt {attempt} is fenced: attempt {state.attempt} has acquired the ledger")
        except LedgerError:
            self.close()
            raise
        incarnation = state.incarnation + 1 if attempt == state.attempt else 1
        self._held_as = (attempt, incarnation)
        return self._record(
            {
                "kind": "claim",
                "attempt": attempt,
                "incarnation": incarnation,
                "holder": self._holder,
                "fromStep": from_step,
            }
        )

    def set_progress(self, progress: Progress, evaluation: EvaluationResult | None = None) -> None:
        """Does nothing: in a local run the run log shows the progress."""

    def wait_until_free(self) -> None:
        """Return once no process holds the ledger: after kill -9 of the driver, workers continue for about two seconds.

        Raises:
            LedgerBusy: if it is still held after the constructor's `lock_wait_seconds`.
        """
        if self._lock is None:
            self._take_lock()
            self.close()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            self._last_written = None

    def _record(self, entry: Entry) -> LedgerState:
        """Append `entry` under the lock, after reading the current state: only the last holder may write."""
        if self._lock is None:
            raise Fenced("only the incarnation that has acquired a ledger may write to it")
        self._check_in_place(self._lock)
        state = self.read()
        fenced = (state.attempt, state.incarnation) != self._held_as
        if fenced and entry["kind"] != "claim":
            raise Fenced(f"incarnation {state.incarnation} of attempt {state.attempt} has acquired the ledger since")
        self._last_written = (self._append(entry, state.head, state.length), state.length + 1)
        return self.read()

    def _check_in_place(self, held: int) -> None:
        """Raise LedgerCorrupt unless the locked file is still at the ledger's path: a copy there has no lock."""
        try:
            same = os.path.samestat(os.fstat(held), self._path.stat())
        except FileNotFoundError:
            same = False
        if not same:
            raise LedgerCorrupt(f"{self._path} was moved or replaced while in use; restore the original file")

    def _append(self, entry: Entry, previous: str, length: int) -> str:
        """Append `entry` and return its hash. The entry is on the disk when this returns."""
        line = _line(entry, previous, length)
        assert self._lock is not None
        before = os.fstat(self._lock).st_size
        try:
            if os.write(self._lock, line) != len(line):
                raise OSError("only a part of the entry was written")
            os.fsync(self._lock)
        except OSError as error:
            # No process has relied on the partial entry, and the next entry must start on a new line.
            os.ftruncate(self._lock, before)
            raise LedgerError(f"{self._path} cannot be written: {error}; free space on the disk and resume") from error
        return str(json.loads(line)["hash"])

    def _load(self) -> tuple[list[dict[str, Any]], str, int]:
        """All complete entries, after checking their chain; the head; and the number of bytes of these entries."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError as error:
            raise LedgerMissing(f"there is no ledger at {self._path}") from error
        before, entries = self._read_before
        if not text.startswith(before):
            before, entries = b"", []
        entries, head = list(entries), entries[-1]["hash"] if entries else _NO_HEAD
        *lines, last = text[len(before) :].split(b"\n")
        for number, line in enumerate(lines, start=len(entries) + 1):
            entry = _entry(line, head, number)
            if entry is None:
                raise LedgerCorrupt(
                    f"{self._path} was edited: entry {number} does not follow from the previous ones; "
                    "restore the file from a copy, since the number of charged steps is no longer known"
                )
            entries.append(entry)
            head = entry["hash"]
        self._read_before = text[: len(text) - len(last)], list(entries)
        # An entry that lacks only its newline counts: a process may have relied on it.
        if (unterminated := _entry(last, head, len(entries) + 1)) is not None:
            entries.append(unterminated)
            head, last = unterminated["hash"], b""
        if not entries:
            raise LedgerCorrupt(f"{self._path} has no entry; restore the file from a copy")
        return entries, head, len(text) - len(last)

    def _drop_torn_line(self) -> None:
        assert self._lock is not None
        self._check_in_place(self._lock)
        _, _, complete = self._load()
        if os.fstat(self._lock).st_size > complete:
            os.ftruncate(self._lock, complete)
        if os.pread(self._lock, 1, complete - 1) != b"\n":
            os.write(self._lock, b"\n")
        os.fsync(self._lock)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        if not self._path.exists():
            raise LedgerMissing(f"there is no ledger at {self._path}")
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND)
        deadline = time.monotonic() + self._lock_wait
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    raise LedgerBusy(f"another run is using {self._path}; wait until it ends, or stop it") from None
                time.sleep(_LOCK_POLL_SECONDS)
        self._lock = descriptor


def _entry(line: bytes, head: str, number: int) -> dict[str, Any] | None:
    """The entry in `line`, if it is valid and follows the entry with the hash `head`; None otherwise."""
    try:
        entry = json.loads(line)
        body = {key: value for key, value in entry.items() if key != "hash"}
        follows = entry["previous"] == head and entry["number"] == number
        valid = follows and entry["hash"] == _hash(body) and _canonical(entry) == line
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    return entry if valid else None


def _line(entry: Entry, previous: str, length: int) -> bytes:
    """An entry as a line of the file."""
    body = {**entry, "number": length + 1, "previous": previous, "time": round(time.time(), 3)}
    return _canonical({**body, "hash": _hash(body)}) + b"\n"


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()
