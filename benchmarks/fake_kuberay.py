"""Who else a running job needs, played: KubeRay and the kubelet, and the trainer's rank 0.

KubeRay is played as lightly as it can be. As soon as a RayJob is there its status is written once (KubeRay's own first
word); cluster and pods come when `run` is called, as objects with the RayJob's own pod templates, since there is no
node. The trainer writes its ledger as the job's service account from the pod that claimed: the guard lets nobody else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from benchmarks.apiserver import PLACES, Object, Server, each, key_of, service_account
from tensafe_operator import names
from tensafe_operator.names import ATTEMPT, JOB, JOB_UID, RAY_CLUSTER_LABEL, RAY_NODE_TYPE

Key = tuple[str, str]
AT_ONCE = 8


@dataclass
class Trainer:
    """Rank 0 of one job: what it has charged, and the ledger as it wrote it last."""

    server: Server
    namespace: str
    job: str
    ledger: str
    pod: str
    steps: int = 0
    _written: Object = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def charge(self, more: int) -> int:
        """Claim, where that has not been done, and charge so many more steps. How many were charged in all."""
        async with self._turn:
            return await self._charge(more)

    async def _charge(self, more: int) -> int:
        path = PLACES["PrivacyLedger"].path(self.namespace, self.ledger)
        user = service_account(self.namespace, self.job, self.pod)
        document = self._written or await self.server.request("GET", path, user=user)
        self.steps += more
        document["status"] = {
            "attempt": 1,
            "charges": [{"attempt": 1, "steps": self.steps, "incarnation": 1, "podUID": self.pod}],
            "chargedThrough": self.steps,
            "length": 1 + (document.get("status") or {}).get("length", 0),
            "head": "0" * 64,
            "progress": {"step": self.steps, "lastUpdateTime": _now()},
        }
        self._written = await self.server.request("PUT", f"{path}/status", document, user=user)
        return self.steps


class FakeKubeRay:
    """Plays for every RayJob that it is told of, by `heard`, while `serve` runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._new: asyncio.Queue[Object] = asyncio.Queue()
        self._ray_jobs: dict[Key, Object] = {}
        self.answered = 0
        self.trainers: dict[Key, Trainer] = {}
        """Of each job that runs, by the job's namespace and name."""

    def heard(self, event: str, ray_job: Object) -> None:
        """A RayJob was made, or is changed."""
        if event == "ADDED":
            self._ray_jobs[key_of(ray_job)] = ray_job
            self._new.put_nowait(ray_job)

    async def serve(self) -> None:
        """Write KubeRay's first word into each new RayJob, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._answer())

    async def run(self) -> None:
        """Let every RayJob run that does not yet: pods that are ready, and a first charge."""
        waiting = [each for each in self._ray_jobs.values() if self._job(each) not in self.trainers]
        await each(AT_ONCE, [lambda ray_job=ray_job: self._run(ray_job) for ray_job in waiting])

    async def _answer(self) -> None:
        while True:
            ray_job = await self._new.get()
            status = {
                "jobDeploymentStatus": "Initializing",
                "rayClusterName": _cluster(ray_job),
                "startTime": _now(),
            }
            await self._say(ray_job, status)
            self.answered += 1

    async def _run(self, ray_job: Object) -> None:
        spec = ray_job["spec"]["rayClusterSpec"]
        await self._pod(ray_job, "head", 0, spec["headGroupSpec"]["template"])
        first = ""
        group = spec["workerGroupSpecs"][0]
        for number in range(group["replicas"]):
            uid = await self._pod(ray_job, "worker", number, group["template"])
            first = first or uid
        info = {"startTime": _now()}
        await self._say(ray_job, {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayJobInfo": info})
        namespace, job = self._job(ray_job)
        ledger = names.ledger_name(job, ray_job["metadata"]["labels"][JOB_UID])
        trainer = Trainer(self._server, namespace, job, ledger, first)
        await trainer.charge(1)
        self.trainers[namespace, job] = trainer

    async def _pod(self, ray_job: Object, role: str, number: int, template: Object) -> str:
        """Make a pod that is ready; its UID."""
        namespace, name = key_of(ray_job)
        labels = {**template["metadata"]["labels"], RAY_NODE_TYPE: role, RAY_CLUSTER_LABEL: _cluster(ray_job)}
        pod_name = f"{name}-{role}-{number}"
        metadata = {**template["metadata"], "name": pod_name, "namespace": namespace, "labels": labels}
        made = await self._server.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        )
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": _now()}
        status = {"status": {"phase": "Running", "conditions": [ready], "startTime": _now()}}
        await self._server.patch("Pod", namespace, pod_name, status, subresource="status")
        return str(made["metadata"]["uid"])

    async def _say(self, ray_job: Object, status: Object) -> None:
        await self._server.patch("RayJob", *key_of(ray_job), {"status": status}, subresource="status")

    def _job(self, ray_job: Object) -> Key:
        metadata = ray_job["metadata"]
        assert metadata["labels"][ATTEMPT] == "1", "nothing fails here, so there is no second attempt"
        return metadata["namespace"], metadata["labels"][JOB]


def _cluster(ray_job: Object) -> str:
    return f"{ray_job['metadata']['name']}-x"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
