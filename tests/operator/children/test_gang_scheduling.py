"""What a batch scheduler reads of a job, as golden manifests: the RayJob, and what KubeRay makes of it.

`gang_scheduling/SCHEDULER.yaml` has both. A fast test builds the RayJob. A slow one gives it to KubeRay's own operator,
which runs for that scheduler. Of each object a file has what schedulers read. After an intended change, correct the
files by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fakes.kuberay import ALL_CRDS, install_kuberay_crds, kuberay_command
from tests.support.job_harness import JobHarness
from tests.support.job_objects import admitted, ray_job_of
from tests.support.polling import wait_until
from tests.support.programs.controlplane import ControlPlane, free_ports
from tests.support.programs.gotools import module_source
from tests.support.programs.processes import Processes

GOLDEN = Path(__file__).parent / "gang_scheduling"
LABELS = {
    "volcano": {"volcano.sh/queue-name": "gpu-queue", "ray.io/priority-class-name": "high"},
    "yunikorn": {
        "yunikorn.apache.org/app-id": "claims-triage",
        "yunikorn.apache.org/queue": "root.gpu",
        "ray.io/gang-scheduling-enabled": "true",
    },
}
"""The labels of `docs/how-to/gpu-nodes.md`, by `batchScheduler.name` of KubeRay's chart."""
OF_SCHEDULERS = ("volcano.sh/", "yunikorn.apache.org/", "scheduling.k8s.io/", "ray.io/priority-class-name",
                 "ray.io/gang-scheduling-enabled", "applicationId", "queue")  # fmt: skip
CLUSTER = {
    "workers": 2,
    "worker": {"gpus": 1, "cpus": "4", "memory": "16Gi"},
    "nodeSelector": {"pool": "gpu"},
    "head": {"nodeSelector": {"pool": "cpu"}},
}


def cluster_of_job(scheduler: str) -> dict[str, Any]:
    return {**CLUSTER, "rayJobLabels": LABELS[scheduler]}


def golden(scheduler: str) -> list[dict[str, Any]]:
    """The RayJob of the golden manifest, and the objects that KubeRay makes of it."""
    return list(yaml.safe_load_all((GOLDEN / f"{scheduler}.yaml").read_text()))


def in_order(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(objects, key=lambda each: json.dumps(each, sort_keys=True))


def seen_by_schedulers(found: dict[str, Any]) -> dict[str, Any]:
    """The part of an object that batch schedulers read."""
    metadata = {
        name: kept
        for name in ("labels", "annotations")
        if (kept := {k: v for k, v in found["metadata"].get(name, {}).items() if k.startswith(OF_SCHEDULERS)})
    }
    return {"kind": found["kind"], "metadata": metadata, "spec": _SPECS[found["kind"]](found["spec"])}


def _of_pod(spec: dict[str, Any]) -> dict[str, Any]:
    named = {name: spec[name] for name in ("schedulerName", "priorityClassName", "nodeSelector") if name in spec}
    return {**named, "containers": [{"resources": container["resources"]} for container in spec["containers"]]}


def _of_ray_job(spec: dict[str, Any]) -> dict[str, Any]:
    head, workers = spec["rayClusterSpec"]["headGroupSpec"], spec["rayClusterSpec"]["workerGroupSpecs"]
    return {
        "suspend": spec["suspend"],
        "head": _of_pod(head["template"]["spec"]),
        "workers": [{"replicas": each["replicas"], **_of_pod(each["template"]["spec"])} for each in workers],
    }


_SPECS = {"RayJob": _of_ray_job, "Pod": _of_pod, "PodGroup": lambda spec: spec}


@pytest.fixture
def with_podgroups(control_plane: ControlPlane, cluster: JobHarness) -> JobHarness:
    """A job on a control plane with the CRD of Volcano's PodGroups, which KubeRay looks for at its start."""
    crds = module_source("volcano", "volcano.sh/volcano") / "installer" / "helm" / "chart" / "volcano" / "crd" / "bases"
    control_plane.kubectl("apply", "--server-side", "-f", str(crds / "scheduling.volcano.sh_podgroups.yaml"))
    control_plane.wait_for_crds()
    return cluster


@pytest.fixture
def kuberay(scheduler: str, with_podgroups: JobHarness, tmp_path: Path) -> Iterator[Processes]:
    """KubeRay's operator for one namespace and one batch scheduler."""
    install_kuberay_crds(with_podgroups.plane, ALL_CRDS)
    (port,) = free_ports(1)
    processes = Processes(tmp_path)
    try:
        command = kuberay_command(with_podgroups.plane, with_podgroups.namespace, port)
        processes.start("kuberay", [*command, f"--batch-scheduler={scheduler}"])
        yield processes
    finally:
        processes.kill("kuberay")


@pytest.mark.parametrize("scheduler", LABELS)
def test_ray_job_has_what_the_scheduler_reads(scheduler: str) -> None:
    job = admitted({"spec.cluster": cluster_of_job(scheduler)})
    assert seen_by_schedulers(ray_job_of(job)) == golden(scheduler)[0]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("scheduler", LABELS)
def test_kuberay_gives_all_pods_to_the_scheduler_as_one_gang(
    scheduler: str, with_podgroups: JobHarness, kuberay: Processes
) -> None:
    job = with_podgroups
    job.apply(spec__cluster=cluster_of_job(scheduler))
    job.reconcile()

    def made() -> list[dict[str, Any]]:
        found = job.plane.kubectl("-n", job.namespace, "get", "pods,podgroups", "-o", "json").stdout
        return [seen_by_schedulers(each) for each in json.loads(found)["items"]]

    expected = [each for each in golden(scheduler) if each["kind"] != "RayJob"]
    pods = [each for each in expected if each["kind"] == "Pod"]
    wait_until(
        lambda: len([each for each in made() if each["kind"] == "Pod"]) >= len(pods), 60, lambda: kuberay.log("kuberay")
    )
    assert in_order(made()) == in_order(expected)
