"""Simulates KubeRay, the kubelet and rank 0 for every RayJob of a cluster.

A watch reports RayJobs. Each new RayJob gets KubeRay's first status at once. Pods and a first charge follow when `run`
is called, so that a benchmark can measure the operator without these writes.
"""

from __future__ import annotations

import asyncio
from functools import partial

from tensafe_operator import names
from tests.support.fakes.kuberay import FakeKubeRay
from tests.support.fakes.trainer import FakeRank0
from tests.support.programs.api_server import ApiServer, Key, Object, key_of, run_concurrently, service_account

CONCURRENCY = 8


class RayJobSimulator:
    """Simulates every RayJob that `on_event` receives, while `serve` runs."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._kuberay = FakeKubeRay(server)
        self._new: asyncio.Queue[Object] = asyncio.Queue()
        self._ray_jobs: dict[Key, Object] = {}
        self.accepted = 0
        """Number of RayJobs that have KubeRay's first status."""
        self.trainers: dict[Key, FakeRank0] = {}
        """Rank 0 of each job that runs, by the job's namespace and name."""

    def on_event(self, event: str, ray_job: Object) -> None:
        """Receive an event of the watch on RayJobs."""
        if event == "ADDED":
            self._ray_jobs[key_of(ray_job)] = ray_job
            self._new.put_nowait(ray_job)

    async def serve(self) -> None:
        """Write KubeRay's first status into each new RayJob, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(self._accept())

    async def run(self) -> None:
        """Run every RayJob that does not run yet: its pods become ready, and rank 0 charges a first step."""
        pending = [each for each in self._ray_jobs.values() if _job_of(each) not in self.trainers]
        await run_concurrently(CONCURRENCY, [partial(self._run, ray_job) for ray_job in pending])

    async def _accept(self) -> None:
        while True:
            await self._kuberay.accept(await self._new.get())
            self.accepted += 1

    async def _run(self, ray_job: Object) -> None:
        workers = await self._kuberay.run(ray_job)
        namespace, job = _job_of(ray_job)
        ledger = names.ledger_name(job, ray_job["metadata"]["labels"][names.JOB_UID])
        template = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]
        user = service_account(namespace, template["spec"]["serviceAccountName"], workers[0])
        trainer = FakeRank0(self._server, namespace, ledger, workers[0], user=user)
        await trainer.charge(1)
        self.trainers[namespace, job] = trainer


def _job_of(ray_job: Object) -> Key:
    """Namespace and name of the job that a RayJob belongs to."""
    metadata = ray_job["metadata"]
    assert metadata["labels"][names.ATTEMPT] == "1", "no simulated attempt fails, so there is no second attempt"
    return metadata["namespace"], metadata["labels"][names.JOB]
