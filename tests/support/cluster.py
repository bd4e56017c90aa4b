"""One job on a real API server, and everybody who has to do with it: its author, the operator, KubeRay, the trainer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from jobs import MINIMAL, changed
from kubernetes.aio import client, config
from ledgers import Pod, make_pod

from e2e.cluster import versions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.gotools import source
from tensafe_operator import names
from tensafe_operator.api import Api, ApiAway
from tensafe_operator.reconcile import Reconciler
from tensafe_operator.settings import Settings

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


def install_kuberays_kinds(plane: ControlPlane) -> None:
    """KubeRay's CRDs, from its module."""
    folder = source("kuberay", versions.KUBERAY_MODULE) / "config" / "crd" / "bases"
    plane.kubectl("apply", "--server-side", "-f", str(folder))
    plane.established()


class Cluster:
    """One job in a namespace, and everybody who has to do with it."""

    name = "claims-triage"

    def __init__(self, plane: ControlPlane, namespace: str, kubeconfig: Path) -> None:
        self.plane, self.namespace = plane, namespace
        self._kubeconfig = kubeconfig
        self.now = 1_800_000_000.0

    def apply(self, **changes: Any) -> None:
        dotted = {path.replace("__", "."): value for path, value in changes.items()}
        manifest = changed(MINIMAL, {**SMALL, "metadata.namespace": self.namespace, **dotted})
        self.plane.kubectl("apply", "-f", "-", text=json.dumps(manifest))

    def reconcile(self, passes: int = 5, *, api: type[Api] = Api, patient: bool = True) -> float | None:
        """The operator's passes, one after the other; with `api` standing between it and the API server. Who is not
        `patient` hears of it when the API server is away.
        """

        async def run() -> float | None:
            settings = client.Configuration()
            await config.load_kube_config(str(self._kubeconfig), client_configuration=settings)
            server = api(client.ApiClient(settings))
            reconciler = Reconciler(server, Settings(image="localhost/trainer:1"), lambda: self.now)
            try:
                wakes = []
                while len(wakes) < passes:
                    try:
                        wakes.append(await reconciler.reconcile(self.namespace, self.name))
                    except ApiAway:
                        if not patient:
                            raise
                        await asyncio.sleep(0.2)  # the API server makes room for a kind that is new to it
                return wakes[-1]
            finally:
                await server.close()

        return asyncio.run(run())

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        done = self.plane.kubectl("-n", self.namespace, "get", kind, name, "-o", "json", check=False)
        return None if done.returncode else dict(json.loads(done.stdout))

    def status(self) -> dict[str, Any]:
        found = self.get("tsj", self.name)
        assert found is not None
        return dict(found["status"])

    def condition(self, kind: str) -> dict[str, Any]:
        return next(each for each in self.status()["conditions"] if each["type"] == kind)

    def kuberay_says(self, name: str = "claims-triage-a1", **status: str) -> None:
        """What KubeRay writes into a RayJob's status."""
        patch = json.dumps({"status": status})
        self.plane.kubectl(
            *("-n", self.namespace, "patch", "rayjob", name, "--subresource=status", "--type=merge", "-p", patch)
        )

    def worker(self, attempt: int = 1) -> Pod:
        """Rank 0's pod, of the service account that the job names."""
        uid = (self.get("tsj", self.name) or {})["metadata"]["uid"]
        labels = {names.JOB_UID: uid, names.ATTEMPT: str(attempt), "ray.io/node-type": "worker"}
        return make_pod(self.plane, self.namespace, "trainer", **labels)

    def ledger(self) -> dict[str, Any]:
        found = self.get("privacyledger", self.status()["ledgerName"])
        assert found is not None
        return found

    def charge(self, pod: Pod, steps: int, **more: Any) -> None:
        """What the trainer writes into its ledger."""
        ledger = self.ledger()
        charges = [{"attempt": 1, "steps": steps, "incarnation": 1, "podUID": pod.uid}]
        ledger["status"] = {
            "attempt": 1,
            "charges": charges,
            "chargedThrough": steps,
            "length": steps + 2,
            "head": "0" * 64,
            "progress": {"step": steps},
            **more,
        }
        self.plane.kubectl(
            *("-n", self.namespace, "replace", "--subresource=status", "-f", "-"),
            text=json.dumps(ledger),
            kubeconfig=pod.kubeconfig,
        )
