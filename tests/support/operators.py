"""The operator as a process, and what a kubelet does for it: it is started again where it lost its Lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from patience import PATIENCE_SECONDS

from e2e.cluster.controlplane import free_ports

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
        self._process = self._start()
        self._may_end = False

    def metrics(self) -> str:
        """What it tells Prometheus; nothing where it does not answer."""
        try:
            with urllib.request.urlopen(self._address, timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    @property
    def leading(self) -> bool:
        return "tensafe_leading 1.0" in self.metrics()

    def keep(self) -> None:
        """Start it again where it ended for want of its Lease.

        Raises:
            AssertionError: where it ended otherwise, and nobody had asked it to.
        """
        if self._may_end or (code := self._process.poll()) is None:
            return
        said = self.log.read_text().splitlines()
        assert code == 1 and any(_LOST in line for line in said[-5:]), "\n".join(said)
        self._process = self._start()

    def end(self) -> int:
        """Wait until it ends, which is what is expected of it: the exit code."""
        self._may_end = True
        return self._process.wait(PATIENCE_SECONDS)

    def terminate(self) -> int:
        """Ask it to end, as a kubelet does: the exit code."""
        self._may_end = True
        self._process.send_signal(signal.SIGTERM)
        return self.end()

    def kill(self) -> None:
        self._may_end = True
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", self._program], env=self._environment, stdout=log, stderr=log
            )
