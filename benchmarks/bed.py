"""What the operator's benchmark stands on: a control plane that keeps an account of requests, and processes beside it.

The account is the API server's own audit log of what the operator's service account asks for, watches aside. It is
written before a request is answered, so nothing that was done can be missing in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.platform import versions
from e2e.platform.controlplane import ControlPlane
from e2e.platform.fixtures.job_harness import install_kuberay_crds
from e2e.platform.fixtures.manifests import MINIMAL, changed
from e2e.platform.fixtures.roles import install_roles
from e2e.platform.gotools import program

__all__ = ["MINIMAL", "REFERENCE", "ROOT", "Account", "Bed", "Operator", "changed"]

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "reference"
"""Namespace of the RayJobs that KubeRay itself is measured with: it looks at no other."""
NAMESPACES = ("few", "rate", "burst", "failover", REFERENCE)
OPERATOR = "system:serviceaccount:tensafe-system:tensafe-operator"
WRITES = ("create", "update", "patch", "delete", "deletecollection")
_MB = 1_000_000


@dataclass(frozen=True)
class Asked:
    """One request of the operator."""

    verb: str
    resource: str
    name: str
    code: int
    seconds: float

    @property
    def what(self) -> str:
        return f"{self.verb} {self.resource}"

    @property
    def writes(self) -> bool:
        """Whether it wrote anything but the Lease."""
        return self.verb in WRITES and self.resource != "leases"


class Account:
    """What the operator has asked for since a moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size if path.exists() else 0

    def asked(self) -> Iterator[Asked]:
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._from)
            for line in log:
                if not line.endswith(b"\n"):
                    return
                event = json.loads(line)
                if event["user"]["username"] == OPERATOR and event["verb"] != "watch":
                    yield _asked(event)

    def writes(self) -> int:
        return sum(each.writes for each in self.asked())

    def summary(self, jobs: int) -> dict[str, dict[str, float]]:
        """How often what was asked for a job, and how long an answer took: the most frequent first."""
        found: dict[str, list[float]] = defaultdict(list)
        for asked in self.asked():
            found[asked.what].append(asked.seconds)
        return {
            what: {"for_a_job": round(len(took) / jobs, 3), "mean_ms": round(1e3 * sum(took) / len(took), 2)}
            for what, took in sorted(found.items(), key=lambda item: -len(item[1]))
        }


def _asked(event: Mapping[str, Any]) -> Asked:
    about = event.get("objectRef") or {}
    resource = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
    name = f"{about.get('namespace')}/{about.get('name')}"
    took = _seconds(event["stageTimestamp"]) - _seconds(event["requestReceivedTimestamp"])
    return Asked(event["verb"], resource or event["requestURI"], name, event["responseStatus"].get("code", 0), took)


def _seconds(stamp: str) -> float:
    hours, minutes, seconds = stamp[11:-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


class Process:
    """A process that is measured."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        with log.open("ab") as to:
            self._process = subprocess.Popen(
                command, env={**os.environ, **(environment or {})}, stdout=to, stderr=to, cwd=ROOT
            )
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def resident_mb(self) -> float:
        return self._memory("VmRSS")

    def peak_mb(self) -> float:
        return self._memory("VmHWM")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, and wait until it is gone."""
        if self.alive:
            self._process.send_signal(number)
        self._process.wait(30)

    def _memory(self, field_name: str) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{field_name}:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024 / _MB


class Operator(Process):
    """`python -m tensafe_operator` under its least Role."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._port = free_port()
        environment = {"KUBECONFIG": str(kubeconfig), "TENSAFE_PORT": str(self._port)}
        super().__init__([sys.executable, "-m", "tensafe_operator"], log, environment)

    async def metrics(self) -> str:
        """What Prometheus would read; empty where nothing answers."""
        return await asyncio.to_thread(answer, self._port, "metrics")

    async def leads(self) -> bool:
        return "tensafe_leading 1.0" in await self.metrics()

    async def charged(self) -> dict[tuple[str, str], float]:
        """Steps charged by namespace and job, as its metrics tell: of every job that it has looked at."""
        found = {}
        for labels, value in re.findall(r"^tensafe_job_steps_charged_total\{(.*)\} (\S+)$", await self.metrics(), re.M):
            names = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            found[names["namespace"], names["job"]] = float(value)
        return found


@dataclass
class Bed:
    """Everything that runs, in one folder."""

    folder: Path
    plane: ControlPlane = field(init=False)
    kubeconfig: Path = field(init=False)
    processes: list[Process] = field(default_factory=list)

    def start(self) -> None:
        plane = self.plane = ControlPlane(self.folder / "plane")
        plane.start()
        plane.kubectl("apply", "-f", str(ROOT / "crds"))
        install_kuberay_crds(plane)
        for namespace in NAMESPACES:
            plane.kubectl("create", "namespace", namespace)
        self.kubeconfig = install_roles(plane)

    def stop(self) -> None:
        for process in self.processes:
            process.end(signal.SIGKILL)
        self.plane.stop()

    def operator(self) -> Operator:
        started = Operator(self.kubeconfig, self.folder / f"operator-{len(self.processes)}.log")
        self.processes.append(started)
        return started

    def kuberay(self) -> tuple[Process, Callable[[], object]]:
        """KubeRay's own operator with its own settings; the process, and what tells whether it is ready."""
        port = free_port()
        command = [
            str(program("kuberay", versions.KUBERAY_MODULE)),
            f"--kubeconfig={self.plane.admin}",
            f"--watch-namespace={REFERENCE}",
            "--enable-leader-election=false",
            "--metrics-addr=0",
            f"--health-probe-bind-address=127.0.0.1:{port}",
        ]
        started = Process(command, self.folder / "kuberay.log")
        self.processes.append(started)
        return started, lambda: answer(port, "readyz")

    def account(self) -> Account:
        return Account(self.plane.folder / "audit.jsonl")


def answer(port: int, page: str) -> str:
    """What a process says of itself; empty where nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as found:
            return str(found.read().decode())
    except OSError:
        return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
