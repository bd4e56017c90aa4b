"""A job in a queue of Kueue: it waits, is admitted, is evicted, and resumes from its checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.platform.cluster import SYSTEM, Cluster
from tensafe_api.timestamps import parse_time
from tests.support.programs.helm import CHART, helm
from tests.support.stopwatch import Stopwatch
from tests.support.team_namespace import TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]

QUEUE = "gpu-queue"
STALL_SECONDS = 300
VERSION = "kueue.x-k8s.io/v1beta2"


@pytest.fixture
def kueue(disposable_cluster: Cluster) -> Iterator[None]:
    with disposable_cluster.kueue():
        yield


@pytest.fixture
def impatient_operator(disposable_cluster: Cluster) -> Iterator[None]:
    """An operator that ends an attempt after five minutes without a step."""
    release = ("tensafe", "--namespace", SYSTEM, "--wait", "--timeout", "180s")
    value = f"stallSeconds={STALL_SECONDS}"
    kubeconfig = disposable_cluster.kubeconfig
    helm("upgrade", "tensafe", str(CHART), *release[1:], "--reuse-values", "--set", value, kubeconfig=kubeconfig)
    yield
    helm("rollback", *release, kubeconfig=kubeconfig)


def test_job_is_queued_admitted_evicted_and_admitted_again(
    kueue: None, impatient_operator: None, team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    cluster_queue = f"queue-of-{team.namespace}"
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.apply(*queues(cluster_queue))
    set_stop_policy(team, cluster_queue, "Hold")
    team.submit(spec__cluster__queueName=QUEUE, spec__privacy__reserveSteps=20)

    # Queued: no pod is started, and no budget is spent.
    team.wait_for_status(lambda status: status.get("phase") == "Queued", 60)
    assert not team.pod_names()

    # Admitted.
    with stopwatch("admitted by Kueue → first step"):
        set_stop_policy(team, cluster_queue, "None")
        team.wait_for_step(1)
    running = team.wait_for_step(7)

    # Evicted, for longer than a job may go without a step: pods terminate, charges stay, the same attempt waits.
    set_stop_policy(team, cluster_queue, "HoldAndDrain")
    evicted = team.wait_for_status(lambda status: status["phase"] == "Queued", 180)
    team.wait_until_none(team.pod_names, 180)
    assert evicted["privacy"]["stepsCharged"] >= running["privacy"]["stepsCharged"]
    since = parse_time(evicted["progress"]["lastUpdateTime"])
    assert since is not None
    team.wait_for_status(lambda _: time.time() > since + STALL_SECONDS + 30, STALL_SECONDS + 60)

    # Admitted again.
    set_stop_policy(team, cluster_queue, "None")
    finished = team.wait_until_finished(900)
    assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
    assert [attempt["number"] for attempt in finished["attempts"]] == [1]
    assert team.incarnation(1) == 2
    assert finished["privacy"]["stepsRecharged"] <= 1, "pods that are asked to terminate save a checkpoint first"
    team.kubectl("delete", "tsj", "triage", "--timeout=300s")
    team.wait_until_none(lambda: team.kubectl("get", "workloads", "-o", "name"), 60)


def queues(name: str) -> list[dict[str, object]]:
    """A queue of the namespace, the cluster's queue behind it, and its quota."""
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


def set_stop_policy(team: TeamNamespace, queue: str, policy: str) -> None:
    """Let a queue admit jobs (None), admit no more (Hold), or also evict admitted ones (HoldAndDrain)."""
    team.kubectl("patch", "clusterqueue", queue, "--type=merge", "-p", json.dumps({"spec": {"stopPolicy": policy}}))
