"""Servers in the background: another process finds, kills and pauses them, and a reused process id is detected."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.programs.processes import Processes, identity, process_of

SLEEPER = ["sleep", "1000"]


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_another_process_can_stop_and_start_a_server(processes: Processes, tmp_path: Path) -> None:
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
    later.kill("server")  # a second kill is no error


def test_server_is_the_child_of_the_preceding_command(tmp_path: Path) -> None:
    """nsenter, where it enters process namespaces, starts the server as its child."""
    processes = Processes(tmp_path, within=["sh", "-c", '"$@"; exit', "sh"])
    processes.start("server", SLEEPER)
    pid = processes.pid("server")
    assert pid is not None
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":  # the shell has forked, and not yet called exec
        assert processes.running("server")
    processes.kill("server")


def test_reused_process_id_is_not_the_server(processes: Processes, tmp_path: Path) -> None:
    processes.start("server", SLEEPER)
    written = tmp_path / "server.pid"
    pid, started = written.read_text().split()
    written.write_text(f"{pid} {int(started) - 1}")
    assert not Processes(tmp_path).running("server")
    assert process_of(identity(int(pid))) == int(pid)
    written.write_text(f"{pid} {started}")
    processes.kill("server")


def test_log_has_a_servers_output(processes: Processes) -> None:
    processes.start("server", ["sh", "-c", "echo hello; exec sleep 1000"])
    while "hello" not in processes.log("server"):
        assert processes.running("server")
    processes.kill("server")
