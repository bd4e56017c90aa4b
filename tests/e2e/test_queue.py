"""A queue of Kueue's before the cluster: the job waits for it, runs, gives way, and goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.platform.cluster import Cluster
from e2e.platform.fixtures.clinic import Clinic
from e2e.platform.fixtures.stopwatch import Stopwatch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]

QUEUE = "gpu-queue"
VERSION = "kueue.x-k8s.io/v1beta2"


@pytest.fixture
def kueue(whole_cluster: Cluster) -> Iterator[None]:
    with whole_cluster.kueue():
        yield


def test_queued_admitted_evicted_and_admitted_again(
    kueue: None, clinic: Clinic, data: Path, stopwatch: Stopwatch
) -> None:
    cluster_queue = f"queue-of-{clinic.namespace}"
    clinic.upload(data)
    clinic.provide_model()
    clinic.apply(*queues(cluster_queue))
    stop(clinic, cluster_queue, "Hold")
    clinic.submit(spec__cluster__queueName=QUEUE, spec__privacy__reserveSteps=20)

    # Queued: nothing is started, and nothing spent.
    clinic.until(lambda status: status.get("phase") == "Queued", 60)
    assert not clinic.pods()

    # Admitted.
    with stopwatch("admitted by Kueue → first step"):
        stop(clinic, cluster_queue, "None")
        clinic.until_step(1)
    ran = clinic.until_step(7)

    # Evicted: its pods go, what was charged stays charged, and it is the same attempt that waits.
    stop(clinic, cluster_queue, "HoldAndDrain")
    evicted = clinic.until(lambda status: status["phase"] == "Queued", 180)
    clinic.until_gone(clinic.pods, 180)
    assert evicted["privacy"]["stepsCharged"] >= ran["privacy"]["stepsCharged"]

    # Admitted again.
    stop(clinic, cluster_queue, "None")
    over = clinic.until_over(900)
    assert over["phase"] == "Succeeded", json.dumps(over, indent=1)
    assert [attempt["number"] for attempt in over["attempts"]] == [1]
    assert clinic.incarnation(1) == 2
    assert over["privacy"]["stepsRecharged"] <= 1, "its pods were told to go, and seal a checkpoint before they do"
    clinic.kubectl("delete", "tsj", "triage", "--timeout=300s")
    clinic.until_gone(lambda: clinic.kubectl("get", "workloads", "-o", "name"), 60)


def queues(name: str) -> list[dict[str, object]]:
    """A queue of the namespace, the cluster's one behind it, and what that may give."""
    quotas = [{"name": "cpu", "nominalQuota": 4}, {"name": "memory", "nominalQuota": "32Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "any", "resources": quotas}]}
    return [
        {"apiVersion": VERSION, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
        {
            "apiVersion": VERSION,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {
            "apiVersion": VERSION,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE},
            "spec": {"clusterQueue": name},
        },
    ]


def stop(clinic: Clinic, queue: str, policy: str) -> None:
    """Let a queue admit (None), admit nobody more (Hold), or also evict who is in (HoldAndDrain)."""
    clinic.kubectl("patch", "clusterqueue", queue, "--type=merge", "-p", json.dumps({"spec": {"stopPolicy": policy}}))
