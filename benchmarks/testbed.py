"""The servers of the operator's benchmark: a control plane with an audit log, and the processes that are measured.

The API server writes the audit log before it answers a request, so no request is missing in it. It has the requests of
the operator's service account; `RequestLog` reads them without watches.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.fakes.kuberay import ALL_CRDS, install_kuberay_crds, kuberay_command
from tests.support.programs.controlplane import ControlPlane, free_ports
from tests.support.roles import install_roles

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "reference"
"""Namespace of the RayJobs that KubeRay's operator is measured with. KubeRay's operator watches no other namespace."""
NAMESPACES = ("few", "rate", "burst", "failover", REFERENCE)
OPERATOR = "system:serviceaccount:tensafe-system:tensafe-operator"
KUBERAY_CONCURRENCY = 10
"""How many RayJobs KubeRay reconciles at once. Its default is 1, which is slow with many jobs."""
WRITE_VERBS = ("create", "update", "patch", "delete", "deletecollection")
_MB = 1_000_000


@dataclass(frozen=True)
class Request:
    """One request of the operator, as the audit log has it."""

    verb: str
    resource: str
    name: str
    code: int
    seconds: float

    @property
    def kind(self) -> str:
        """Verb and resource, such as `create configmaps`."""
        return f"{self.verb} {self.resource}"

    @property
    def writes(self) -> bool:
        """Whether it is a write to anything but the Lease."""
        return self.verb in WRITE_VERBS and self.resource != "leases"


class RequestLog:
    """The operator's requests since this object was created."""

    def __init__(self, audit_log: Path) -> None:
        self._path = audit_log
        self._offset = audit_log.stat().st_size if audit_log.exists() else 0

    def requests(self) -> Iterator[Request]:
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    return
                event = json.loads(line)
                if event["user"]["username"] == OPERATOR and event["verb"] != "watch":
                    yield _request(event)

    def writes(self) -> int:
        return sum(each.writes for each in self.requests())

    def summary(self, jobs: int) -> dict[str, dict[str, float]]:
        """The number of requests for each job and their mean duration, by kind; the most frequent first."""
        found: dict[str, list[float]] = defaultdict(list)
        for request in self.requests():
            found[request.kind].append(request.seconds)
        return {
            kind: {"for_a_job": round(len(took) / jobs, 3), "mean_ms": round(1e3 * sum(took) / len(took), 2)}
            for kind, took in sorted(found.items(), key=lambda item: -len(item[1]))
        }


def _request(event: Mapping[str, Any]) -> Request:
    reference = event.get("objectRef") or {}
    resource = "/".join(part for part in (reference.get("resource"), reference.get("subresource")) if part)
    name = f"{reference.get('namespace')}/{reference.get('name')}"
    took = _seconds(event["stageTimestamp"]) - _seconds(event["requestReceivedTimestamp"])
    return Request(event["verb"], resource or event["requestURI"], name, event["responseStatus"].get("code", 0), took)


def _seconds(timestamp: str) -> float:
    """Seconds since midnight of an RFC 3339 time."""
    hours, minutes, seconds = timestamp[11:-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


class MeasuredProcess:
    """A process whose memory and CPU time are measured."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env={**os.environ, **(environment or {})}, stdout=output, stderr=output, cwd=ROOT
            )
        self.started = time.monotonic()

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

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, and wait until the process has exited."""
        if self.alive:
            self._process.send_signal(number)
        self._process.wait(30)

    def _memory(self, field_name: str) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{field_name}:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024 / _MB


class MeasuredOperator(MeasuredProcess):
    """`python -m tensafe_operator` with the chart's roles."""

    def __init__(self, kubeconfig: Path, log: Path, python: str) -> None:
        (self._port,) = free_ports(1)
        environment = {"KUBECONFIG": str(kubeconfig), "TENSAFE_PORT": str(self._port)}
        super().__init__([python, "-m", "tensafe_operator"], log, environment)

    async def metrics(self) -> str:
        """The metrics page; empty where the operator does not answer."""
        return await asyncio.to_thread(get_page, self._port, "metrics")

    async def is_ready(self) -> bool:
        """Whether the readiness probe succeeds."""
        return await asyncio.to_thread(get_page, self._port, "healthz") == "ok"

    async def leads(self) -> bool:
        return "tensafe_leading 1.0" in await self.metrics()

    async def steps_charged(self) -> dict[tuple[str, str], float]:
        """Steps charged by namespace and job, from the metrics, which include only jobs that were reconciled."""
        found = {}
        for labels, value in re.findall(r"^tensafe_job_steps_charged_total\{(.*)\} (\S+)$", await self.metrics(), re.M):
            names = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            found[names["namespace"], names["job"]] = float(value)
        return found


@dataclass
class Testbed:
    """The control plane and all measured processes, in one folder."""

    folder: Path
    python: str = sys.executable
    """The interpreter that runs the operator."""
    plane: ControlPlane = field(init=False)
    kubeconfig: Path = field(init=False)
    processes: list[MeasuredProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plane = ControlPlane(self.folder / "plane")

    def start(self) -> None:
        plane = self.plane
        plane.start()
        plane.kubectl("apply", "-f", str(ROOT / "crds"))
        install_kuberay_crds(plane, ALL_CRDS)
        for namespace in NAMESPACES:
            plane.kubectl("create", "namespace", namespace)
        self.kubeconfig = install_roles(plane)

    def stop(self) -> None:
        for process in self.processes:
            process.stop(signal.SIGKILL)
        self.plane.stop()

    def start_operator(self) -> MeasuredOperator:
        started = MeasuredOperator(self.kubeconfig, self.folder / f"operator-{len(self.processes)}.log", self.python)
        self.processes.append(started)
        return started

    def start_kuberay(self) -> tuple[MeasuredProcess, Callable[[], object]]:
        """Start KubeRay's operator as one sets it for many jobs; return the process, and a check of its readiness."""
        (port,) = free_ports(1)
        command = [*kuberay_command(self.plane, REFERENCE, port), f"--reconcile-concurrency={KUBERAY_CONCURRENCY}"]
        started = MeasuredProcess(command, self.folder / "kuberay.log")
        self.processes.append(started)
        return started, lambda: get_page(port, "readyz")

    def request_log(self) -> RequestLog:
        return RequestLog(self.plane.folder / "audit.jsonl")


def get_page(port: int, page: str) -> str:
    """A page of a server on loopback; empty where no server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
