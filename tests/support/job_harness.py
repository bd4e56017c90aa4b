"""One job on a real API server, with its author, the operator, KubeRay and the trainer as methods.

The operator's `reconcile` runs in the test's process, under the chart's roles. KubeRay and the trainer are fakes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tensafe_api.resources.job import KIND
from tensafe_api.resources.ledger import LEDGER_KIND
from tensafe_operator import names
from tensafe_operator.accountant import Accountant
from tensafe_operator.apply import Refused
from tensafe_operator.decision.figures import ComputedFigures, Figure
from tensafe_operator.kinds import KINDS
from tensafe_operator.observe import observe
from tensafe_operator.reconcile import Reconciler
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import ApiUnavailable
from tensafe_operator.runtime.connection import KUBECONFIG, connect
from tensafe_operator.runtime.objects import Key
from tensafe_operator.settings import Settings
from tests.support.fakes import blocking, statuses
from tests.support.ledger_objects import Pod, make_pod
from tests.support.manifests import MINIMAL, changed
from tests.support.programs.controlplane import ControlPlane

SMALL = {"spec.training": {"steps": 20, "expectedBatchSize": 250}, "spec.dataset.unit.atLeast": 5000}
FINAL = {
    "uri": "s3://models/final",
    "step": 20,
    "attempt": 1,
    "digest": "sha256:1",
    "statementDigest": "sha256:2",
    "final": True,
    "stepsCharged": 20,
}


Refuse = Callable[..., None]
"""`refuse(operation, group, resource, unless="CEL")`: refuses an operation on a resource of an API group."""


class ComputingAccountant(Accountant):
    """Has each figure at once."""

    def __init__(self) -> None:
        super().__init__(lambda key: None)

    def known(self, key: Key) -> ComputedFigures:
        return ComputedFigures()

    def ask(self, key: Key, figures: Iterable[Figure[Any]]) -> None:
        """Nothing is missing."""


class JobHarness:
    """One job in a namespace.

    Args:
        kubeconfig: of the operator's service account.

    Attributes:
        now: the operator's time, in seconds since the epoch.
        image: the image of jobs that name none.
    """

    name = "claims-triage"

    def __init__(self, plane: ControlPlane, namespace: str, kubeconfig: Path) -> None:
        self.plane, self.namespace = plane, namespace
        self._kubeconfig = kubeconfig
        self.now = float(int(time.time()))
        self.settings = Settings()
        self.image = "localhost/trainer:1"

    def apply(self, **changes: Any) -> None:
        dotted = {path.replace("__", "."): value for path, value in changes.items()}
        manifest = changed(MINIMAL, {**SMALL, "metadata.namespace": self.namespace, **dotted})
        self.plane.api.apply(manifest)

    def reconcile(self, passes: int = 5, *, api: type[ApiClient] = ApiClient, patient: bool = True) -> float | None:
        """Reconcile the job several times, each time until it has no further step; return the time of the next
        reconcile that the operator would plan. What the API server refuses is tried again, as by the work queue.

        Args:
            api: client class between the operator and the API server, for faults.
            patient: whether to retry while the API server is unavailable; otherwise `ApiUnavailable` is raised.
        """

        async def run() -> float | None:
            with patch.dict(os.environ, {KUBECONFIG: str(self._kubeconfig)}):
                server = api(await connect(), KINDS.resources, names.OPERATOR)
            settings, accountant = replace(self.settings, image=self.image), ComputingAccountant()
            reconciler = Reconciler(server, settings, accountant, lambda document: None, lambda: self.now)
            try:
                wake: float | None = None
                done = 0
                while done < passes:
                    try:
                        observed = await observe(server, self.namespace, self.name)
                        wake = await reconciler.reconcile((self.namespace, self.name), observed) if observed else None
                        done += wake is None or wake > self.now
                    except Refused:
                        done += 1
                    except ApiUnavailable:
                        if not patient:
                            raise
                        await asyncio.sleep(0.2)  # the API server does not serve a new CRD yet
                return wake
            finally:
                await server.close()

        return asyncio.run(run())

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.plane.api.find(kind, self.namespace, name)

    def status(self) -> dict[str, Any]:
        found = self.get(KIND, self.name)
        assert found is not None
        return dict(found["status"])

    def condition(self, kind: str) -> dict[str, Any]:
        return next(each for each in self.status()["conditions"] if each["type"] == kind)

    def set_ray_job_status(self, status: Mapping[str, Any], name: str = "claims-triage-a1") -> None:
        """Write a RayJob's status as KubeRay does (see `tests.support.fakes.statuses`)."""
        self.plane.api.patch("RayJob", self.namespace, name, {"status": status}, "status")

    def create_worker_pod(self, attempt: int = 1) -> Pod:
        """Create the pod of rank 0, with the service account that the job names. It is ready."""
        uid = (self.get(KIND, self.name) or {})["metadata"]["uid"]
        labels = {names.JOB_UID: uid, names.ATTEMPT: str(attempt), "ray.io/node-type": "worker"}
        pod = make_pod(self.plane, self.namespace, "trainer", **labels)
        self.plane.api.patch("Pod", self.namespace, pod.name, {"status": statuses.ready_pod()}, "status")
        return pod

    def start_training(self) -> Pod:
        """Take the job to five charged steps; return its worker's pod."""
        self.apply()
        self.reconcile()
        self.set_ray_job_status(statuses.running("claims-triage-a1-x"))
        pod = self.create_worker_pod()
        self.charge(pod, 5)
        self.reconcile()
        assert self.status()["phase"] == "Running"
        return pod

    def ledger(self) -> dict[str, Any]:
        found = self.get(LEDGER_KIND, self.status()["ledgerName"])
        assert found is not None
        return found

    def charge(self, pod: Pod, steps: int, **more: Any) -> None:
        """Write the job's ledger as rank 0 does in this pod: charged up to `steps` steps in all."""
        blocking.charge_through(pod, self.namespace, self.status()["ledgerName"], steps, **more)
