"""The operator's hands on a real API server, with no more rights than it needs: a job from apply to its end.

KubeRay, the kubelet and the trainer are played by the test, each with its own rights: statuses that KubeRay writes,
pods that are objects, and a ledger that is written with the bound token of the pod that claims.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from controlplane import ControlPlane
from gotools import source
from jobs import MINIMAL, changed
from kubernetes.aio import client, config
from ledgers import Pod, make_pod
from roles import install_roles

from tensafe_operator import names
from tensafe_operator.api import Api, ApiAway
from tensafe_operator.reconcile import Reconciler
from tensafe_operator.settings import Settings

pytestmark = pytest.mark.cluster

SMALL = {"spec.training": {"steps": 20, "expectedBatchSize": 250}, "spec.dataset.unit.atLeast": 5000}


@pytest.fixture(scope="module")
def kubeconfig(control_plane: ControlPlane) -> Path:
    """The operator's, on a control plane that knows KubeRay's kinds."""
    folder = source("kuberay", "github.com/ray-project/kuberay/ray-operator") / "config" / "crd" / "bases"
    control_plane.kubectl("apply", "--server-side", "-f", str(folder))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    return install_roles(control_plane)


class Cluster:
    """One job in a namespace, and everybody who has to do with it."""

    def __init__(self, plane: ControlPlane, namespace: str, kubeconfig: Path) -> None:
        self.plane, self.namespace = plane, namespace
        self._kubeconfig = kubeconfig
        self.now = 1_800_000_000.0

    def apply(self, **changes: Any) -> None:
        dotted = {path.replace("__", "."): value for path, value in changes.items()}
        manifest = changed(MINIMAL, {**SMALL, "metadata.namespace": self.namespace, **dotted})
        self.plane.kubectl("apply", "-f", "-", text=json.dumps(manifest))

    def reconcile(self, passes: int = 5) -> float | None:
        """The operator's passes, one after the other."""

        async def run() -> float | None:
            settings = client.Configuration()
            await config.load_kube_config(str(self._kubeconfig), client_configuration=settings)
            api = Api(client.ApiClient(settings))
            reconciler = Reconciler(api, Settings(image="localhost/trainer:1"), lambda: self.now)
            try:
                wakes = []
                while len(wakes) < passes:
                    try:
                        wakes.append(await reconciler.reconcile(self.namespace, "claims-triage"))
                    except ApiAway:  # as while the API server makes room for a kind that is new to it
                        await asyncio.sleep(0.2)
                return wakes[-1]
            finally:
                await api.close()

        return asyncio.run(run())

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        done = self.plane.kubectl("-n", self.namespace, "get", kind, name, "-o", "json", check=False)
        return None if done.returncode else dict(json.loads(done.stdout))

    def status(self) -> dict[str, Any]:
        found = self.get("tsj", "claims-triage")
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

    def worker(self) -> Pod:
        """Rank 0's pod, of the service account that the job names."""
        uid = (self.get("tsj", "claims-triage") or {})["metadata"]["uid"]
        labels = {names.JOB_UID: uid, names.ATTEMPT: "1", "ray.io/node-type": "worker"}
        return make_pod(self.plane, self.namespace, "trainer", **labels)

    def charge(self, pod: Pod, steps: int, **more: Any) -> None:
        """What the trainer writes into its ledger."""
        ledger = self.get("privacyledger", self.status()["ledgerName"])
        assert ledger is not None
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


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str, kubeconfig: Path) -> Cluster:
    return Cluster(control_plane, namespace, kubeconfig)


FINAL = {
    "uri": "s3://models/final",
    "step": 20,
    "attempt": 1,
    "digest": "sha256:1",
    "statementDigest": "sha256:2",
    "final": True,
    "stepsCharged": 20,
}


def test_from_apply_to_a_model_and_after(cluster: Cluster) -> None:
    cluster.apply()
    cluster.reconcile()
    assert cluster.status()["phase"] == "Starting"
    ray_job = cluster.get("rayjob", "claims-triage-a1")
    assert ray_job is not None and ray_job["spec"]["submissionMode"] == "HTTPMode"
    for kind, name in (
        ("secret", f"{cluster.status()['ledgerName']}-key"),
        ("configmap", "claims-triage-a1"),
        ("networkpolicy", "claims-triage"),
        ("rolebinding", "claims-triage-trainer"),
    ):
        assert cluster.get(kind, name), kind

    cluster.kuberay_says(jobDeploymentStatus="Running", rayClusterName="claims-triage-a1-x")
    pod = cluster.worker()
    cluster.charge(pod, 5)
    cluster.reconcile()
    status = cluster.status()
    assert (status["phase"], status["privacy"]["stepsCharged"]) == ("Running", 5)
    assert 0 < float(status["privacy"]["epsilonSpent"]) < float(status["privacy"]["epsilonClaimed"])
    shown = cluster.plane.kubectl("-n", cluster.namespace, "get", "tsj").stdout.split("\n")
    assert shown[0].split() == ["NAME", "PHASE", "STEP", "EPSILON", "TARGET", "WORKERS", "AGE"]
    assert shown[1].split()[:3] == ["claims-triage", "Running", "5"]

    cluster.charge(pod, 20, outcome="Completed", releases=[FINAL])
    cluster.kuberay_says(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
    cluster.reconcile()
    assert cluster.status()["phase"] == "Succeeded"
    assert cluster.status()["finalModel"]["uri"] == "s3://models/final"
    where = ("-n", cluster.namespace)
    cluster.plane.kubectl(*where, "wait", "tsj/claims-triage", "--for=condition=Succeeded", "--timeout=5s")

    cluster.now += 4000
    cluster.reconcile()
    assert cluster.get("rayjob", "claims-triage-a1") is None
    ledger = cluster.status()["ledgerName"]
    cluster.plane.kubectl(*where, "delete", "tsj", "claims-triage")
    cluster.reconcile()
    assert cluster.get("privacyledger", ledger), "what was spent stays spent"


def test_nothing_is_written_when_nothing_changes(cluster: Cluster) -> None:
    cluster.apply()
    cluster.reconcile()
    before = cluster.get("tsj", "claims-triage")
    cluster.now += 60
    cluster.reconcile(passes=2)
    assert cluster.get("tsj", "claims-triage") == before


def test_the_same_name_applied_again_is_another_job_with_another_ledger(cluster: Cluster) -> None:
    cluster.apply()
    cluster.reconcile()
    first = cluster.status()["ledgerName"]
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", "claims-triage")
    cluster.apply()
    cluster.reconcile()
    second = cluster.status()["ledgerName"]
    assert first != second
    assert cluster.get("privacyledger", first) and cluster.get("privacyledger", second)


def test_a_suspended_job_is_a_dry_run(cluster: Cluster) -> None:
    cluster.apply(spec__suspend=True)
    cluster.reconcile()
    status = cluster.status()
    assert status["phase"] == "Suspended"
    assert float(status["privacy"]["noiseMultiplier"]) > 0
    assert cluster.get("rayjob", "claims-triage-a1") is None
    cluster.apply(spec__suspend=False)
    cluster.reconcile()
    assert cluster.get("rayjob", "claims-triage-a1")


def test_a_quota_is_told_and_the_job_goes_on_when_it_is_raised(cluster: Cluster) -> None:
    quota = ("-n", cluster.namespace, "create", "quota", "few", "--hard=count/rayjobs.ray.io=0")
    cluster.plane.kubectl(*quota)
    cluster.apply()
    wait_until(lambda: bool((cluster.get("quota", "few") or {}).get("status", {}).get("hard")))
    cluster.reconcile()
    cluster.reconcile()
    assert cluster.condition("Stalled")["reason"] in ("QuotaExceeded", "Forbidden")
    assert "few" in cluster.condition("Stalled")["message"]
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "quota", "few")
    cluster.reconcile()
    assert cluster.get("rayjob", "claims-triage-a1")


def wait_until(happened: Callable[[], bool]) -> None:
    """Nobody tells when a controller has seen a quota."""
    import time

    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)
