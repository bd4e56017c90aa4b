"""The operator as a process. Like a kubelet, a test starts it again after it has lost its Lease."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.support.polling import wait_until
from tests.support.programs.controlplane import free_ports

TERMINATION_SECONDS = 15
"""Termination grace period of the chart's pods."""
EXIT_SECONDS = 60
"""Longest time until the process exits. Without a renewal, it believes in its Lease for seven seconds. It ends at
most ten seconds after that. The rest is a margin for slow machines.
"""
MAX_STARTS = 4
_LOST = "the lease is lost"
_RUN = "\nimport runpy; runpy.run_module('tensafe_operator', run_name='__main__')"


class OperatorProcess:
    """One replica.

    If the machine pauses for some seconds, the operator cannot renew its Lease and exits, as it should. So tests call
    `restart_if_lease_lost` while they wait for something.

    Args:
        log: file to which the output is appended.
        environment: the operator's settings.
        before: Python code that runs in the process before the operator starts.
    """

    def __init__(self, log: Path, environment: Mapping[str, str], *, before: str = "") -> None:
        self.log = log
        (self.port,) = free_ports(1)
        self.health = f"http://127.0.0.1:{self.port}/healthz"
        self._address = f"http://127.0.0.1:{self.port}/metrics"
        self._environment = {**os.environ, **environment, "TENSAFE_PORT": str(self.port)}
        self._program = before + _RUN
        self._exit_expected = False
        self._starts = 0
        self._process = self._start()

    def metrics(self) -> str:
        """The metrics page; empty if the operator does not answer."""
        try:
            with urllib.request.urlopen(self._address, timeout=2) as answer:
                return str(answer.read().decode())
        except (OSError, http.client.HTTPException):
            return ""

    @property
    def leading(self) -> bool:
        return "tensafe_leading 1.0" in self.metrics()

    def restart_if_lease_lost(self) -> None:
        """Start the operator again if it exited because it lost its Lease.

        Raises:
            AssertionError: it exited for another reason that the test did not request, or too often.
        """
        if self._exit_expected or (code := self._process.poll()) is None:
            return
        assert code == 1 and self.lease_lost and self._starts < MAX_STARTS, self.log.read_text()
        self._process = self._start()

    @property
    def lease_lost(self) -> bool:
        """Whether this process, and not an earlier one, has logged that it lost its Lease."""
        return _LOST in self.log.read_text()[self._log_offset :]

    def wait_for_exit(self, seconds: float = EXIT_SECONDS) -> int:
        """Wait until the process exits, as the test expects; return the exit code."""
        self._exit_expected = True
        wait_until(
            lambda: self._process.poll() is not None,
            seconds,
            lambda: f"the operator still runs: {self.log.read_text()[-3000:]}",
        )
        return self._process.returncode

    def terminate(self) -> int:
        """Ask the process to terminate, as a kubelet does; return the exit code."""
        self._exit_expected = True
        self._process.send_signal(signal.SIGTERM)
        return self.wait_for_exit(TERMINATION_SECONDS)

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a lost node does, and wait for its end."""
        self._exit_expected = True
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        self._log_offset = len(self.log.read_text()) if self.log.exists() else 0
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", self._program], env=self._environment, stdout=log, stderr=log
            )
