"""The plugin as a user calls it, with a namespace on a real API server.

It runs in the process of the test, with a kubeconfig of its own. Its standard output is that of a pipe.
"""

from __future__ import annotations

import contextlib
import os
import pty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensafe_kubectl.main import main
from tests.support.plugin_team import Plugin, PluginProcess, Result, Start, Team, Terminal
from tests.support.programs.controlplane import ControlPlane


@pytest.fixture
def team(control_plane: ControlPlane, namespace: str) -> Team:
    return Team(control_plane, namespace)


@pytest.fixture
def plugin(team: Team, capfd: pytest.CaptureFixture[str]) -> Plugin:
    """Call the plugin in the team's namespace, as an administrator or with another kubeconfig."""

    def call(*arguments: str, kubeconfig: Path | None = None, namespace: str = team.namespace) -> Result:
        capfd.readouterr()
        try:
            code = main([*arguments, "--kubeconfig", str(kubeconfig or team.plane.admin), "-n", namespace])
        except SystemExit as end:
            code = int(end.code or 0)
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture
def terminal() -> Terminal:
    def shown_by(write: Callable[[], object]) -> str:
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
            write()
        shown = b""
        with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as screen:  # EIO is the end of a terminal
            while chunk := screen.read(4096):
                shown += chunk
        return shown.decode()

    return shown_by


@pytest.fixture
def start(team: Team) -> Iterator[Start]:
    """Start the plugin as a process of its own, which is ended with the test."""
    processes: list[PluginProcess] = []

    def start_one(*arguments: str, kubeconfig: Path | None = None) -> PluginProcess:
        processes.append(PluginProcess(team, *arguments, kubeconfig=kubeconfig))
        return processes[-1]

    yield start_one
    for each in processes:
        each.kill()
