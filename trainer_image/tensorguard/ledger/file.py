"""The ledger as a local file, for runs without Kubernetes.

`ledger.jsonl` holds one entry a line, each with the hash of the one before it, so that nothing in the middle can be
changed without a trace; that the tail was not cut off shows from the checkpoints, which record the ledger's head and
length. A line is on the disk (fsync) before the call that writes it returns. A last line without a newline was torn by
a crash before anybody relied on it: readers skip it, and the next claimant removes it. An exclusive lock (flock, which
dies with its process) belongs to whoever claimed.

The chain notices accidents and hasty edits. Somebody who may write the folder can make a whole new chain: keep the
folder as you keep a key.
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

NAME = "ledger.jsonl"
_NO_HEAD = "0" * 64
_LOCK_POLL_SECONDS = 0.05


class FileLedger(LedgerWriter):
    """A ledger in `directory`. Reading needs no lock; `claim` takes it and `close` (or death) gives it back."""

    max_checkpoints: int | None = None

    def __init__(self, directory: Path, *, lock_wait_seconds: float = 0.0) -> None:
        """Args: directory: of the run; lock_wait_seconds: how long a claim waits for a holder that is about to die."""
        self._path = directory / NAME
        self._holder = f"{os.uname().nodename}/{os.getpid()}"
        self._lock_wait = lock_wait_seconds
        self._lock: int | None = None
        self._claimed: tuple[int, int] | None = None
        self._wrote: tuple[str, int] | None = None
        """The head and length after our last entry: while we hold the lock nobody else may change them."""

    @classmethod
    def create(cls, directory: Path, spec: LedgerSpec) -> FileLedger:
        """Open a new ledger. Raises LedgerError where there is one already: what was spent stays spent."""
        ledger = cls(directory)
        line = _line({"kind": "open", "spec": spec.model_dump(by_alias=True, mode="json")}, _NO_HEAD, 0)
        # Written aside and linked, so that a ledger exists with its first entry or not at all.
        aside = directory / f".{NAME}-{os.getpid()}"
        try:
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            os.link(aside, ledger._path)
            _sync_directory(directory)
        except FileExistsError as error:
            raise LedgerError(f"{ledger._path} exists already; resume that run, or name another directory") from error
        except OSError as error:
            raise LedgerError(
                f"{ledger._path} could not be made: {error}; name a directory on a local disk with room"
            ) from error
        finally:
            aside.unlink(missing_ok=True)
        return ledger

    def read(self) -> LedgerState:
        entries, head, _ = self._load()
        if self._wrote is not None and (head, len(entries)) != self._wrote:
            raise LedgerCorrupt(
                f"{self._path} was changed while in use; put back what was cut off, since what was spent stays spent"
            )
        try:
            opening, *rest = entries
            state = new_state(LedgerSpec.model_validate(opening["spec"]), opening["hash"])
            for entry in rest:
                state = apply_entry(state, entry, entry["hash"])
            return state
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerCorrupt(
                f"{self._path} is not a ledger that this version of tensafe can read: {error}"
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
                raise Fenced(f"attempt {attempt} comes too late: attempt {state.attempt} has claimed the ledger")
        except LedgerError:
            self.close()
            raise
        incarnation = state.incarnation + 1 if attempt == state.attempt else 1
        self._claimed = (attempt, incarnation)
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
        """Nothing: in a local run the event log tells."""

    def wait_until_free(self) -> None:
        """Return once nobody holds the ledger: after kill -9 of the driver, workers step on for about two seconds.

        Raises:
            LedgerBusy: where it is still held after the wait that was given to the constructor.
        """
        if self._lock is None:
            self._take_lock()
            self.close()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            self._claimed = None
            self._wrote = None

    def _record(self, entry: Entry) -> LedgerState:
        """Append `entry` under the lock, after a look at what is there: only the last claimant may write."""
        if self._lock is None or self._claimed is None:
            raise Fenced("only the incarnation that has claimed a ledger may write to it")
        self._check_in_place(self._lock)
        state = self.read()
        fenced = (state.attempt, state.incarnation) != self._claimed
        if fenced and entry["kind"] != "claim":
            raise Fenced(f"incarnation {state.incarnation} of attempt {state.attempt} has claimed the ledger since")
        self._wrote = (self._append(entry, state.head, state.length), state.length + 1)
        return self.read()

    def _check_in_place(self, held: int) -> None:
        """Raise unless the file that is held is still the one at the ledger's path: a copy put there has no lock."""
        try:
            same = os.path.samestat(os.fstat(held), self._path.stat())
        except FileNotFoundError:
            same = False
        if not same:
            raise LedgerCorrupt(f"{self._path} was moved or replaced while in use; put the file back as it was")

    def _append(self, entry: Entry, previous: str, length: int) -> str:
        """Append `entry`, on the disk when this returns; its hash."""
        line = _line(entry, previous, length)
        assert self._lock is not None
        before = os.fstat(self._lock).st_size
        try:
            if os.write(self._lock, line) != len(line):
                raise OSError("the disk took only a part of the entry")
            os.fsync(self._lock)
        except OSError as error:
            os.ftruncate(
                self._lock, before
            )  # nobody has relied on it, and the next entry must not run into its remains
            raise LedgerError(
                f"{self._path} could not be written: {error}; make room on the disk and resume"
            ) from error
        return str(json.loads(line)["hash"])

    def _load(self) -> tuple[list[dict[str, Any]], str, int]:
        """All whole entries with their chain checked, the head, and how many bytes they take."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError as error:
            raise LedgerMissing(f"there is no ledger at {self._path}") from error
        *lines, last = text.split(b"\n")
        entries: list[dict[str, Any]] = []
        head = _NO_HEAD
        for number, line in enumerate(lines, start=1):
            entry = _entry(line, head, number)
            if entry is None:
                raise LedgerCorrupt(
                    f"{self._path} was edited: entry {number} does not follow from the ones before it; "
                    "restore the file from a copy, since what was spent can no longer be told"
                )
            entries.append(entry)
            head = entry["hash"]
        # An entry that lacks nothing but its end of line counts: somebody may have relied on it.
        if (unended := _entry(last, head, len(entries) + 1)) is not None:
            entries.append(unended)
            head, last = unended["hash"], b""
        if not entries:
            raise LedgerCorrupt(f"{self._path} holds no entry; restore the file from a copy")
        return entries, head, len(text) - len(last)

    def _drop_torn_line(self) -> None:
        assert self._lock is not None
        self._check_in_place(self._lock)
        _, _, whole = self._load()
        if os.fstat(self._lock).st_size > whole:
            os.ftruncate(self._lock, whole)
        if os.pread(self._lock, 1, whole - 1) != b"\n":
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
                    raise LedgerBusy(f"another run is using {self._path}; wait for its end, or stop it") from None
                time.sleep(_LOCK_POLL_SECONDS)
        self._lock = descriptor


def _entry(line: bytes, head: str, number: int) -> dict[str, Any] | None:
    """The entry that `line` holds, if it is a sound one that goes on from `head`."""
    try:
        entry = json.loads(line)
        body = {key: value for key, value in entry.items() if key != "hash"}
        follows = entry["previous"] == head and entry["number"] == number
        sound = follows and entry["hash"] == _hash(body) and _canonical(entry) == line
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    return entry if sound else None


def _line(entry: Entry, previous: str, length: int) -> bytes:
    """An entry as it stands in the file."""
    body = {**entry, "number": length + 1, "previous": previous, "time": round(time.time(), 3)}
    return _canonical({**body, "hash": _hash(body)}) + b"\n"


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
