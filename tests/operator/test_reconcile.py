"""Reconciles of a job from `kubectl apply` to its end, on a real API server, with the rights of the chart's roles.

The test does the work of KubeRay, the kubelet and the trainer, each with its own rights. It writes the status of the
RayJob, creates pods as objects, and writes the ledger with the bound token of the pod that acquires it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar

import pytest

from tensafe_operator import names
from tensafe_operator.runtime.api_client import ApiClient
from tests.support.fakes import statuses
from tests.support.job_harness import FINAL, JobHarness
from tests.support.polling import wait_until
from tests.support.programs.api_server import ApiServer, connect, run_concurrently

pytestmark = pytest.mark.cluster


@pytest.mark.smoke
def test_job_from_apply_to_its_model_and_its_deletion(cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    assert cluster.status()["phase"] == "Starting"
    ray_job = cluster.get("RayJob", "claims-triage-a1")
    assert ray_job is not None and ray_job["spec"]["submissionMode"] == "HTTPMode"
    volumes = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    tls_secret = ray_job["metadata"]["annotations"][names.TLS_SECRET]
    for kind, name in (
        ("Secret", cluster.ledger()["spec"]["keySecretName"]),
        ("Secret", tls_secret),
        ("ConfigMap", next(each["configMap"]["name"] for each in volumes if each["name"] == "job")),
        ("NetworkPolicy", "claims-triage"),
        ("RoleBinding", "tensafe-trainer-trainer"),
    ):
        assert cluster.get(kind, name), kind

    cluster.set_ray_job_status(statuses.running("claims-triage-a1-x"))
    pod = cluster.create_worker_pod()
    cluster.charge(pod, 5)
    cluster.reconcile()
    status = cluster.status()
    assert (status["phase"], status["privacy"]["stepsCharged"]) == ("Running", 5)
    assert 0 < float(status["privacy"]["epsilonSpent"]) < float(status["privacy"]["epsilonClaimed"])
    shown = cluster.plane.kubectl("-n", cluster.namespace, "get", "tsj").stdout.split("\n")
    assert shown[0].split() == ["NAME", "PHASE", "STEP", "EPSILON", "TARGET", "WORKERS", "AGE"]
    assert shown[1].split()[:3] == ["claims-triage", "Running", "5"]

    cluster.charge(pod, 20, outcome="Completed", releases=[FINAL])
    cluster.set_ray_job_status(statuses.finished("SUCCEEDED"))
    cluster.reconcile()
    assert cluster.status()["phase"] == "Succeeded"
    assert cluster.status()["finalModel"]["uri"] == "s3://models/final"
    assert cluster.status()["keyDeleted"] is True
    assert cluster.get("Secret", cluster.ledger()["spec"]["keySecretName"]) is None
    assert cluster.get("Secret", tls_secret) is None
    assert cluster.get("RayJob", "claims-triage-a1"), "it is kept for its logs"
    where = ("-n", cluster.namespace)
    cluster.plane.kubectl(*where, "wait", "tsj/claims-triage", "--for=condition=Succeeded", "--timeout=5s")

    cluster.now += 4000
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1") is None
    ledger = cluster.status()["ledgerName"]
    cluster.plane.kubectl(*where, "delete", "tsj", "claims-triage")
    cluster.reconcile()
    assert cluster.get("PrivacyLedger", ledger), "what was spent stays spent"


def test_nothing_is_written_if_nothing_changes(cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    cluster.now += 60
    cluster.reconcile()
    before = cluster.get("TenSafeTrainingJob", "claims-triage")
    cluster.now += 10
    cluster.reconcile(passes=2)
    assert cluster.get("TenSafeTrainingJob", "claims-triage") == before


def test_job_applied_again_under_the_same_name_gets_another_ledger(cluster: JobHarness) -> None:
    cluster.apply()
    cluster.reconcile()
    first = cluster.status()["ledgerName"]
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", "claims-triage")
    cluster.apply()
    cluster.reconcile()
    second = cluster.status()["ledgerName"]
    assert first != second
    assert cluster.get("PrivacyLedger", first) and cluster.get("PrivacyLedger", second)


def test_suspended_job_is_a_dry_run(cluster: JobHarness) -> None:
    cluster.apply(spec__suspend=True)
    cluster.reconcile()
    status = cluster.status()
    assert status["phase"] == "Suspended"
    assert float(status["privacy"]["noiseMultiplier"]) > 0
    assert cluster.get("RayJob", "claims-triage-a1") is None
    cluster.apply(spec__suspend=False)
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1")


def test_quota_is_reported_and_the_job_continues_once_it_is_removed(cluster: JobHarness) -> None:
    quota = ("-n", cluster.namespace, "create", "quota", "few", "--hard=count/rayjobs.ray.io=0")
    cluster.plane.kubectl(*quota)
    cluster.apply()
    wait_until(lambda: bool((cluster.get("ResourceQuota", "few") or {}).get("status", {}).get("hard")))
    cluster.reconcile()
    cluster.reconcile()
    assert cluster.condition("Stalled")["reason"] in ("QuotaExceeded", "Forbidden")
    assert "few" in cluster.condition("Stalled")["message"]
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "quota", "few")
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1")


class CountingClient(ApiClient):
    """Keeps the method of each request."""

    requests: ClassVar[list[str]] = []

    async def _request(self, method: str, *rest: Any, **named: Any) -> Any:
        self.requests.append(method)
        return await super()._request(method, *rest, **named)


def test_job_with_256_workers_starts_blocks_and_runs_with_few_requests(
    cluster: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the pods are ready, the others pend, and one of those lacks its Secret."""
    cluster.now = time.time()  # KubeRay's times are compared with it
    monkeypatch.setattr(CountingClient, "requests", [])
    cluster.apply(spec__cluster__workers=256)
    cluster.reconcile()
    cluster.set_ray_job_status(statuses.initializing("claims-triage-a1-x", statuses.now()))
    ray_job, rank_0 = cluster.get("RayJob", "claims-triage-a1"), cluster.create_worker_pod()
    assert ray_job is not None
    others = [f"other-{number}" for number in range(255)]
    ready = {"status": statuses.ready_pod(statuses.now())}

    async def start_half(server: ApiServer) -> None:
        await run_concurrently(16, [partial(create_worker_pod, server, ray_job, name) for name in others])
        await run_concurrently(16, [partial(make_ready, server, name) for name in others[::2]])
        await server.create(missing_secret(await server.get("Pod", cluster.namespace, others[1])))

    async def start_all(server: ApiServer) -> None:
        await run_concurrently(16, [partial(make_ready, server, name) for name in (*others, rank_0.name)])

    async def make_ready(server: ApiServer, name: str) -> None:
        await server.patch("Pod", cluster.namespace, name, ready, subresource="status")

    run_as_admin(cluster, start_half)
    cluster.reconcile(passes=1, api=CountingClient)
    assert len(CountingClient.requests) < 30
    assert cluster.condition("Stalled")["reason"] == "SecretMissing"
    assert cluster.status()["workers"] == {"desired": 256, "ready": 129}

    run_as_admin(cluster, start_all)
    cluster.set_ray_job_status(statuses.running("claims-triage-a1-x"))
    cluster.charge(rank_0, 5)
    cluster.reconcile()
    assert cluster.status()["workers"] == {"desired": 256, "ready": 256}
    assert cluster.status()["phase"] == "Running"
    assert cluster.ledger()["spec"]["mechanism"]["workers"] == 256


def test_container_that_a_node_cannot_start_is_named(cluster: JobHarness) -> None:
    """The statuses are those of a kubelet with containerd. It does not create the container, and later not start it."""
    cluster.now = time.time()
    cluster.apply(spec__cluster__workers=1)
    cluster.reconcile()
    cluster.set_ray_job_status(statuses.initializing("claims-triage-a1-x", statuses.now()))
    pod = cluster.create_worker_pod()

    def report(phase: str, state: dict[str, Any]) -> tuple[str, str, str]:
        image = {"name": "ray", "image": "localhost/none", "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": phase, "containerStatuses": [{**image, "state": state}]}

        async def write(server: ApiServer) -> None:
            await server.patch("Pod", cluster.namespace, pod.name, {"status": status}, subresource="status")

        run_as_admin(cluster, write)
        cluster.reconcile(passes=1)
        found = cluster.condition("Stalled")
        return found["status"], found["reason"], found["message"]

    refused = {"reason": "CreateContainerError", "message": "failed to inject CDI devices: gpu=0"}
    holds, reason, message = report("Pending", {"waiting": refused})
    assert (holds, reason) == ("True", "ContainerRefused")
    assert f"pod {pod.name}: container ray: CreateContainerError: failed to inject CDI devices: gpu=0: Fix" in message
    assert report("Pending", {"waiting": {"reason": "ContainerCreating"}})[:2] == ("False", "NotBlocked")

    text = 'exec: "bash": executable file not found in $PATH'
    ended = {"exitCode": 128, "reason": "StartError", "message": text, "containerID": "containerd://0"}
    ended |= {"startedAt": "1970-01-01T00:00:00Z", "finishedAt": statuses.now()}
    holds, reason, message = report("Failed", {"waiting": None, "terminated": ended})
    assert (holds, reason) == ("True", "CrashLoop")
    assert f"pod {pod.name}: container ray ended with exit code 128 (StartError): {text}: Suspend the job" in message
    cluster.plane.kubectl("-n", cluster.namespace, "delete", "pod", pod.name, "--force", "--grace-period=0")
    cluster.reconcile(passes=1)
    assert cluster.condition("Stalled")["message"] == message, "KubeRay has deleted the pod, and creates the next one"


def run_as_admin(cluster: JobHarness, work: Callable[[ApiServer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connect(cluster.plane.admin) as server:
            await work(server)

    asyncio.run(run())


async def create_worker_pod(server: ApiServer, ray_job: dict[str, Any], name: str) -> None:
    """Create a worker's pod from the template in the RayJob, as KubeRay does."""
    (group,) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    template = group["template"]
    labels = {**template["metadata"]["labels"], names.RAY_NODE_TYPE: "worker"}
    metadata = {"name": name, "namespace": ray_job["metadata"]["namespace"], "labels": labels}
    await server.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def missing_secret(pod: dict[str, Any]) -> dict[str, Any]:
    """The Event of a kubelet that cannot mount a Secret."""
    metadata = pod["metadata"]
    about = {"kind": "Pod", **{name: metadata[name] for name in ("name", "namespace", "uid")}}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "mount", "namespace": metadata["namespace"]},
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'MountVolume.SetUp failed for volume "key": secret "key" not found',
        "involvedObject": about,
    }


def test_status_is_replaced_as_a_whole_after_a_user_has_reset_its_managers(cluster: JobHarness) -> None:
    """With server-side apply, each entry would stay. So many checkpoints would be too many, and charges not counted."""
    pod = cluster.start_training()
    cluster.charge(pod, 6, evaluations=[{"step": 6, "loss": "0.5"}])
    cluster.reconcile()
    reset = json.dumps([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}])
    cluster.plane.kubectl("-n", cluster.namespace, "patch", "tsj", cluster.name, "--type=json", "-p", reset)
    cluster.charge(pod, 7, evaluations=[{"step": 7, "loss": "0.4"}])
    cluster.reconcile()
    assert [each["step"] for each in cluster.status()["evaluations"]] == [7]


def test_job_that_a_finalizer_keeps_ends_its_training_when_it_is_deleted(cluster: JobHarness) -> None:
    pod = cluster.start_training()
    where = ("-n", cluster.namespace)
    kept = json.dumps({"metadata": {"finalizers": ["team.example/audit"]}})
    cluster.plane.kubectl(*where, "patch", "tsj", cluster.name, "--type=merge", "-p", kept)
    cluster.plane.kubectl(*where, "delete", "tsj", cluster.name, "--wait=false")
    cluster.charge(pod, 9)
    cluster.reconcile()
    assert cluster.get("RayJob", "claims-triage-a1") is None
    assert cluster.status()["privacy"]["stepsCharged"] == 9
    released = json.dumps({"metadata": {"finalizers": None}})
    cluster.plane.kubectl(*where, "patch", "tsj", cluster.name, "--type=merge", "-p", released)
    wait_until(lambda: cluster.get("TenSafeTrainingJob", cluster.name) is None)


def test_attempt_does_not_end_while_the_api_server_does_not_serve_ray_jobs(cluster: JobHarness) -> None:
    """As for some seconds of an upgrade of KubeRay. The RayJob exists, and its pods train."""

    def serve(served: bool) -> None:
        versions = json.loads(cluster.plane.kubectl("get", "crd", "rayjobs.ray.io", "-o", "json").stdout)["spec"]
        number = [each["name"] for each in versions["versions"]].index("v1")
        change = [{"op": "replace", "path": f"/spec/versions/{number}/served", "value": served}]
        cluster.plane.kubectl("patch", "crd", "rayjobs.ray.io", "--type=json", "-p", json.dumps(change))
        list_all = ("get", "--raw", f"/apis/ray.io/v1/namespaces/{cluster.namespace}/rayjobs")
        wait_until(lambda: (cluster.plane.kubectl(*list_all, check=False).returncode == 0) == served)

    cluster.start_training()
    serve(False)
    try:
        cluster.reconcile()
        assert cluster.condition("Stalled")["reason"] == "KubeRayMissing"
    finally:
        serve(True)
    cluster.reconcile()
    assert cluster.status()["phase"] == "Running"
    assert [each.get("endTime") for each in cluster.status()["attempts"]] == [None]
