"""The operator as a process, and what a kubelet does for it: it is started again where it lost its Lease."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from patience import until

from e2e.cluster.controlplane import free_ports

GRACE_SECONDS = 15
"""What the chart's pods have to end."""
END_SECONDS = 60
"""The Lease runs out within seven, and ten more are left."""
MOST_STARTS = 4
_LOST = "the lease is lost"
_RUN = "\nimport runpy; runpy.run_module('tensafe_operator', run_name='__main__')"


class Operator:
    """One replica.

    On a machine that stands still for some seconds the Lease is not renewed, and the process ends, as it should. `keep`
    is called while something is waited for.

    Args:
        log: what it says is appended there.
        environment: its settings.
        before: Python that is run before it begins.
    """

    def __init__(self, log: Path, environment: Mapping[str, str], *, before: str = "") -> None:
        self.log = log
        (port,) = free_ports(1)
        self._address = f"http://127.0.0.1:{port}/metrics"
        self._environment = {**os.environ, **environment, "TENSAFE_PORT": str(port)}
        self._program = before + _RUN
        self._may_end = False
        self._starts = 0
        self._process = self._start()

    def metrics(self) -> str:
        """What it tells Prometheus; nothing where it does not answer."""
        try:
            with urllib.request.urlopen(self._address, timeout=2) as answer:
                return str(answer.read().decode())
        except (OSError, http.client.HTTPException):
            return ""

    @property
    def leading(self) -> bool:
        return "tensafe_leading 1.0" in self.metrics()

    def keep(self) -> None:
        """Start it again where it ended for want of its Lease. (Also a check that it goes on otherwise.)

        Raises:
            AssertionError: where it ended otherwise, or again and again, and nobody had asked it to.
        """
        if self._may_end or (code := self._process.poll()) is None:
            return
        assert code == 1 and self.lost_its_lease and self._starts < MOST_STARTS, self.log.read_text()
        self._process = self._start()

    @property
    def lost_its_lease(self) -> bool:
        """Whether this process, and not one before it, has said so."""
        return _LOST in self.log.read_text()[self._said :]

    def end(self, seconds: float = END_SECONDS) -> int:
        """Wait until it ends, which is what is expected of it: the exit code."""
        self._may_end = True
        until(lambda: self._process.poll() is not None, seconds, lambda: f"it goes on: {self.log.read_text()[-3000:]}")
        return self._process.returncode

    def terminate(self) -> int:
        """Ask it to end, as a kubelet does: the exit code."""
        self._may_end = True
        self._process.send_signal(signal.SIGTERM)
        return self.end(GRACE_SECONDS)

    def kill(self) -> None:
        self._may_end = True
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        self._said = len(self.log.read_text()) if self.log.exists() else 0
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", self._program], env=self._environment, stdout=log, stderr=log
            )
