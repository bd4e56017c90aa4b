"""A fake of KubeRay and of the kubelet on a real API server: statuses of RayJobs, and pods that are ready.

A RayJob comes in. Pods are created from the RayJob's own pod templates, and no container runs. No RayCluster is
created: the operator reads only its name, which is in the RayJob's status.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensafe_operator.names import RAY_CLUSTER_LABEL, RAY_NODE_TYPE
from tests.support.fakes import statuses
from tests.support.programs import versions
from tests.support.programs.api_server import ApiServer, Object, key_of
from tests.support.programs.controlplane import ControlPlane
from tests.support.programs.gotools import module_source, program

READ_CRDS = ("rayclusters", "rayjobs")
"""Enough where KubeRay's own operator does not run."""
ALL_CRDS = (*READ_CRDS, "rayservices", "raycronjobs")
"""What KubeRay's own operator needs."""


def install_kuberay_crds(plane: ControlPlane, names: Sequence[str] = READ_CRDS) -> None:
    """Install KubeRay's CRDs, from its Go module. They are large: the API server needs seconds for each."""
    folder = module_source("kuberay", versions.KUBERAY_MODULE) / "config" / "crd" / "bases"
    files = [f"--filename={folder / f'ray.io_{name}.yaml'}" for name in names]
    plane.kubectl("apply", "--server-side", *files)
    plane.wait_for_crds()


def kuberay_command(plane: ControlPlane, namespace: str, port: int) -> list[str]:
    """The command of KubeRay's own operator, for one namespace, which needs `ALL_CRDS`. Its health is on `port`."""
    return [
        str(program("kuberay", versions.KUBERAY_MODULE)),
        f"--kubeconfig={plane.admin}",
        f"--watch-namespace={namespace}",
        "--enable-leader-election=false",
        "--metrics-addr=0",
        f"--health-probe-bind-address=127.0.0.1:{port}",
    ]


class FakeKubeRay:
    """Writes as an administrator what KubeRay and the kubelet write."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def write_status(self, namespace: str, name: str, status: Object) -> None:
        """Merge `status` into a RayJob's status."""
        await self._server.patch("RayJob", namespace, name, {"status": status}, subresource="status")

    async def accept(self, ray_job: Object) -> None:
        """Write the first status of a new RayJob."""
        await self.write_status(*key_of(ray_job), statuses.initializing(cluster_name(ray_job), statuses.now()))

    async def run(self, ray_job: Object) -> list[str]:
        """Create the head's and the workers' pods, all ready, and report that the RayJob runs.

        Returns:
            The UIDs of the workers' pods, in the order of their numbers.
        """
        spec = ray_job["spec"]["rayClusterSpec"]
        await self._create_pod(ray_job, "head", 0, spec["headGroupSpec"]["template"])
        group = spec["workerGroupSpecs"][0]
        workers = [
            await self._create_pod(ray_job, "worker", number, group["template"]) for number in range(group["replicas"])
        ]
        running = {**statuses.running(cluster_name(ray_job), statuses.now()), "jobStatus": "RUNNING"}
        await self.write_status(*key_of(ray_job), running)
        return workers

    async def _create_pod(self, ray_job: Object, node_type: str, number: int, template: Object) -> str:
        """Create one pod of a RayCluster, with the kubelet's status; return its UID."""
        namespace, name = key_of(ray_job)
        labels = {
            **template["metadata"]["labels"],
            RAY_NODE_TYPE: node_type,
            RAY_CLUSTER_LABEL: cluster_name(ray_job),
        }
        pod_name = f"{name}-{node_type}-{number}"
        metadata = {**template["metadata"], "name": pod_name, "namespace": namespace, "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        created = await self._server.create(pod)
        status = {"status": statuses.ready_pod(statuses.now())}
        await self._server.patch("Pod", namespace, pod_name, status, subresource="status")
        return str(created["metadata"]["uid"])


def cluster_name(ray_job: Object) -> str:
    """Name of the RayCluster of a RayJob."""
    return f"{ray_job['metadata']['name']}-x"
