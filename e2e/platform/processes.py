"""Servers in the background, each with a log: as children of this process, or in namespaces that outlive it.

Of each the process id is written down, with the time at which the process began, so that whoever comes later can tell
it from another process of the same number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TIMEOUT_SECONDS = 300


class Processes:
    """Servers by name. Logs are NAME.log in `logs`, process ids NAME.pid in `folder`.

    Args:
        within: what a command is preceded by, such as nsenter's call; it may start the command as a child.
    """

    def __init__(self, folder: Path, logs: Path | None = None, within: Sequence[str] = ()) -> None:
        self.logs = logs or folder
        self._folder, self._within = folder, list(within)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a server. It goes on when this process ends."""
        with (self.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*self._within, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._children[name] = child
        self._file(name).write_text(identity(self._innermost(child.pid)))

    def running(self, name: str) -> bool:
        """Whether the server is there still."""
        if (child := self._children.get(name)) is not None:
            child.poll()
        return self.pid(name) is not None

    def pid(self, name: str) -> int | None:
        """The server's process id; None where it does not run."""
        with contextlib.suppress(OSError):
            return process_of(self._file(name).read_text())
        return None

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one server, and wait until it is gone; SIGSTOP freezes it until SIGCONT."""
        pid = self.pid(name)
        if pid is None:
            return
        os.kill(pid, number)
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while self.running(name):
                assert time.monotonic() < deadline, f"{name} does not end"
                time.sleep(0.01)  # it may be nobody's child here
            if (child := self._children.pop(name, None)) is not None:
                child.wait()
            self._file(name).unlink()

    def log(self, name: str) -> str:
        """The last lines that a server wrote."""
        return (self.logs / f"{name}.log").read_text(errors="replace")[-4000:]

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.pid"

    def _innermost(self, pid: int) -> int:
        """The process that the command itself became."""
        if not self._within:
            return pid
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            assert time.monotonic() < deadline, f"{self._within[0]} starts nothing"
            time.sleep(0.01)
        return int(children[0])


def identity(pid: int) -> str:
    """What tells a process from all others: its number, and when it began, in ticks since the machine did."""
    return f"{pid} {_began(pid)}"


def process_of(identity: str) -> int | None:
    """The number of a process that is there; None where it has ended."""
    pid, began = identity.split()
    with contextlib.suppress(OSError):
        if _began(int(pid)) == began and _stat(int(pid))[0] != "Z":
            return int(pid)
    return None


def _began(pid: int) -> str:
    return _stat(pid)[19]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may hold blanks; the state is the first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
