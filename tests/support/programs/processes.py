"""Servers in the background, each with a log: children of this process, or processes in namespaces that outlive it.

A file has each server's process id and start time. A later test process can find the server by it, and does not take
another process with the same id for it.
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
    """Servers by name, with logs NAME.log in `logs` and process ids NAME.pid in `folder`.

    Args:
        within: command that precedes each server's command, such as nsenter. It may start the server as its child.
    """

    def __init__(self, folder: Path, logs: Path | None = None, within: Sequence[str] = ()) -> None:
        self.logs = logs or folder
        self._folder, self._within = folder, list(within)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a server, which keeps running when this process exits."""
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
        """Whether the server runs."""
        if (child := self._children.get(name)) is not None:
            child.poll()
        return self.pid(name) is not None

    def pid(self, name: str) -> int | None:
        """The server's process id; None if it does not run."""
        with contextlib.suppress(OSError):
            return process_of(self._file(name).read_text())
        return None

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one server and wait until it has exited. SIGSTOP pauses it until SIGCONT, without a wait."""
        pid = self.pid(name)
        if pid is None:
            return
        os.kill(pid, number)
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while self.running(name):
                assert time.monotonic() < deadline, f"{name} does not exit"
                time.sleep(0.01)  # it may not be a child of this process
            if (child := self._children.pop(name, None)) is not None:
                child.wait()
            self._file(name).unlink()

    def log(self, name: str) -> str:
        """The last lines of a server's log."""
        return (self.logs / f"{name}.log").read_text(errors="replace")[-4000:]

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.pid"

    def _innermost(self, pid: int) -> int:
        """The process that runs the server's own command."""
        if not self._within:
            return pid
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            assert time.monotonic() < deadline, f"{self._within[0]} starts no process"
            time.sleep(0.01)
        return int(children[0])


def identity(pid: int) -> str:
    """A process' unique identity: its id, and its start time in clock ticks since boot."""
    return f"{pid} {_start_time(pid)}"


def process_of(identity: str) -> int | None:
    """The id of a running process; None if it has exited."""
    pid, started = identity.split()
    with contextlib.suppress(OSError):
        if _start_time(int(pid)) == started and _stat(int(pid))[0] != "Z":
            return int(pid)
    return None


def _start_time(pid: int) -> str:
    return _stat(pid)[19]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may contain spaces. The first is the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
