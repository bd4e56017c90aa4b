"""The fakes of KubeRay and of rank 0 on a real API server: the operator reports a simulated job as running."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.support.fakes import statuses
from tests.support.fakes.kuberay import install_kuberay_crds
from tests.support.fakes.simulator import RayJobSimulator
from tests.support.job_harness import JobHarness
from tests.support.programs.api_server import RequestRejected, connect
from tests.support.programs.controlplane import ControlPlane
from tests.support.roles import install_roles


@pytest.mark.cluster
def test_a_simulated_ray_job_runs_and_charges_its_ledger(control_plane: ControlPlane, namespace: str) -> None:
    install_kuberay_crds(control_plane)
    harness = JobHarness(control_plane, namespace, install_roles(control_plane))
    harness.now = time.time()  # the fakes write the time of the clock
    harness.apply(spec__cluster__serviceAccountName=None)
    harness.reconcile()

    async def simulate(admin: Path) -> None:
        async with connect(admin) as server:
            simulator = RayJobSimulator(server)
            serving = asyncio.create_task(simulator.serve())
            simulator.on_event("ADDED", await server.get("RayJob", namespace, "claims-triage-a1"))
            while simulator.accepted < 1:
                await asyncio.sleep(0.01)
            await simulator.run()
            await simulator.trainers[namespace, harness.name].charge(4)
            serving.cancel()

    asyncio.run(simulate(control_plane.admin))
    harness.reconcile()
    status = harness.status()
    assert (status["phase"], status["privacy"]["stepsCharged"]) == ("Running", 5)
    ray_job = harness.get("RayJob", "claims-triage-a1")
    assert ray_job is not None and ray_job["status"]["rayClusterName"] == "claims-triage-a1-x"


@pytest.mark.cluster
def test_a_client_reports_the_servers_own_message(control_plane: ControlPlane, namespace: str) -> None:
    async def ask() -> None:
        async with connect(control_plane.admin) as server:
            await server.get("Pod", namespace, "absent")

    with pytest.raises(RequestRejected, match='404 pods "absent" not found'):
        asyncio.run(ask())


@pytest.mark.parametrize(("job_status", "deployment"), [("SUCCEEDED", "Complete"), ("FAILED", "Failed")])
def test_a_finished_ray_job_has_the_deployment_status_of_kuberay(job_status: str, deployment: str) -> None:
    assert statuses.finished(job_status)["jobDeploymentStatus"] == deployment
