"""A user's namespace on a real API server, for the tests of `kubectl tensafe`.

Tests write objects as the operator, KubeRay and the kubelet do, without these programs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.job import KIND
from tensafe_api.resources.status import Attempt, Progress, Status
from tensafe_operator import names
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.conditions import JobState, blocked_state, set_conditions
from tests.support.fakes import statuses
from tests.support.fakes.kuberay import install_kuberay_crds
from tests.support.ledger_objects import SPEC, LedgerObject, Pod, make_pod
from tests.support.manifests import MINIMAL, changed
from tests.support.polling import TIMEOUT_SECONDS
from tests.support.programs.api_requests import RESOURCES
from tests.support.programs.controlplane import ControlPlane

NAME = "claims-triage"


@dataclass(frozen=True)
class Result:
    """How a call of the plugin ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Plugin = Callable[..., Result]
Terminal = Callable[[Callable[[], object]], str]
"""Runs a function whose standard output is a terminal; returns what it wrote."""


def status_of(phase: Phase, reason: Reason, message: str = "", **fields: Any) -> dict[str, Any]:
    """A job's status as the operator writes it: the conditions are those of its own rules.

    Args:
        fields: fields of the status, by their Python names; `stalled` for the state; `blocked`, the
            object, and `fix` for one that a blocker has.
    """
    stalled, blocked = fields.pop("stalled", False), fields.pop("blocked", None)
    state = JobState(phase, reason, message, stalled=stalled)
    if blocked is not None:
        blocker = Blocker(reason, blocked, message, fields.pop("fix", None))
        state = blocked_state(blocker, phase, stalled=stalled)
    status = Status(observed_generation=1, **fields)
    set_conditions(status, state, 1_800_000_000.0)
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")


def running(step: int, total: int = 20) -> dict[str, Any]:
    """The status of a job that trains."""
    return status_of(
        Phase.RUNNING,
        Reason.TRAINING,
        progress=Progress(step=step, total_steps=total),
        attempts=(Attempt(number=1, ray_job_name=f"{NAME}-a1", ray_cluster_name=f"{NAME}-a1-x"),),
    )


class PluginProcess:
    """The plugin as a process, whose lines a test waits for."""

    def __init__(self, team: Team, *arguments: str, kubeconfig: Path | None = None) -> None:
        command = [sys.executable, "-m", "tensafe_kubectl.main", *arguments, "-n", team.namespace]
        self._process = subprocess.Popen(
            [*command, "--kubeconfig", str(kubeconfig or team.plane.admin)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # A shell in the background has its children ignore Ctrl-C. A user's shell does not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self._deadline = threading.Timer(TIMEOUT_SECONDS, self._process.kill)
        self._deadline.start()
        self.lines: list[str] = []

    def wait_for(self, text: str) -> None:
        """Read lines until one has this text."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError(f"no line has {text!r}: {''.join(self.lines)}")

    def press_ctrl_c(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """The exit code, and everything that was printed."""
        assert self._process.stdout is not None
        self.lines += self._process.stdout
        code = self._process.wait()
        self._deadline.cancel()
        return code, "".join(self.lines)

    def kill(self) -> None:
        self._process.kill()
        self.end()


Start = Callable[..., PluginProcess]


class Team:
    """A user's namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.plane.kubectl("-n", self.namespace, *arguments, text=text).stdout

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        """Create an object in the namespace; return it."""
        return self.plane.api.create(changed(document, {"metadata.namespace": self.namespace}))

    def create_job(self, name: str = NAME, status: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        """Create a job, with a status if one is given; return it."""
        dotted = {path.replace("__", "."): value for path, value in changes.items()}
        self.create(changed(MINIMAL, {"metadata.name": name, **dotted}))
        if status is not None:
            self.write_status(status, name)
        return self.job(name)

    def job(self, name: str = NAME) -> dict[str, Any]:
        return self.plane.api.send("GET", RESOURCES[KIND].path(self.namespace, name))

    def write_status(self, status: dict[str, Any], name: str = NAME) -> None:
        """Replace the fields of a job's status, as the operator does."""
        self.plane.api.patch(KIND, self.namespace, name, {"status": status}, "status")

    def create_pod(
        self, name: str, job: dict[str, Any], role: str, status: dict[str, Any] | None = None, **spec: Any
    ) -> None:
        """Create a pod of the job's first attempt, with the kubelet's status."""
        labels = {**names.labels(job["metadata"]["name"], job["metadata"]["uid"], 1), names.RAY_NODE_TYPE: role}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [{"name": f"ray-{role}", "image": "localhost/none"}], **spec},
        }
        self.create(pod)
        if status is not None:
            self.plane.api.patch("Pod", self.namespace, name, {"status": status}, "status")

    def create_ray_job(self, name: str) -> str:
        """Create a RayJob; return its UID."""
        install_kuberay_crds(self.plane)
        self.plane.wait_for_crds()
        ray_job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": {}}
        return str(self.create(ray_job)["metadata"]["uid"])

    def create_warning(
        self, name: str, kind: str, about: str, reason: str, message: str, *, time: str | None = None
    ) -> None:
        """Create a warning Event. time: when it was last seen, by default now."""
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name},
            "involvedObject": {"kind": kind, "name": about, "namespace": self.namespace},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "lastTimestamp": time or statuses.now(),
        }
        self.create(event)

    def create_ledger(self, job: dict[str, Any], **spec: Any) -> tuple[LedgerObject, Pod]:
        """Create the ledger of a job, and the pod of rank 0, which may write it. `spec`: other fields of its spec."""
        metadata = job["metadata"]
        name = names.ledger_name(metadata["name"], metadata["uid"])
        spec = {"jobName": metadata["name"], "jobUID": metadata["uid"], "plannedSteps": 20, **spec}
        ledger = LedgerObject(self.plane, self.namespace, name=name, **spec)
        return ledger, make_pod(self.plane, self.namespace, SPEC["serviceAccountName"])

    def user(self, name: str, *rules: dict[str, Any]) -> Path:
        """The kubeconfig of a service account that has these rights in the namespace, and no others."""
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}}
        self.create({**role, "rules": list(rules)})
        return self._account(name, f"--role={name}")

    def member(self, role: str) -> Path:
        """The kubeconfig of a service account with a ClusterRole in the namespace, such as `edit`."""
        return self._account(role, f"--clusterrole={role}")

    def _account(self, name: str, role: str) -> Path:
        self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
        self.kubectl("create", "rolebinding", name, role, f"--serviceaccount={self.namespace}:{name}")
        token = self.plane.api.token(self.namespace, name)
        return self.plane.kubeconfig_of_token(f"{self.namespace}-{name}", token)
