"""Servers in the background: found again by whoever comes later, killed, frozen, and never taken for another."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from e2e.platform.processes import Processes, identity, process_of

SLEEPER = ["sleep", "1000"]


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_another_process_finds_stops_and_starts_a_server(processes: Processes, tmp_path: Path) -> None:
    processes.start("server", SLEEPER)
    later = Processes(tmp_path)
    assert later.running("server")
    assert later.pid("server") == processes.pid("server")
    later.kill("server", signal.SIGSTOP)
    assert later.running("server")
    processes.kill("server")
    assert not later.running("server")
    later.start("server", SLEEPER)
    assert processes.running("server")
    later.kill("server")
    later.kill("server")  # what is gone stays gone


def test_the_server_is_what_the_command_before_it_starts(tmp_path: Path) -> None:
    """nsenter, where it enters process namespaces, starts the server as its child."""
    processes = Processes(tmp_path, within=["sh", "-c", '"$@"; exit', "sh"])
    processes.start("server", SLEEPER)
    pid = processes.pid("server")
    assert pid is not None
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":  # until then it is the shell's copy of itself
        assert processes.running("server")
    processes.kill("server")


def test_a_number_that_was_given_to_another_process_is_not_the_server(processes: Processes, tmp_path: Path) -> None:
    processes.start("server", SLEEPER)
    written = tmp_path / "server.pid"
    pid, began = written.read_text().split()
    written.write_text(f"{pid} {int(began) - 1}")
    assert not Processes(tmp_path).running("server")
    assert process_of(identity(int(pid))) == int(pid)
    written.write_text(f"{pid} {began}")
    processes.kill("server")


def test_a_log_tells_what_a_server_wrote(processes: Processes) -> None:
    processes.start("server", ["sh", "-c", "echo hello; exec sleep 1000"])
    while "hello" not in processes.log("server"):
        assert processes.running("server")
    processes.kill("server")
