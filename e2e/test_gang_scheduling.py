"""A job with Volcano: while only a part of its pods fits, none is started, and its status says what it waits for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.platform import images
from e2e.platform.cluster import Cluster
from tensafe_api.resources.numeric import parse_quantity
from tests.support.stopwatch import Stopwatch
from tests.support.team_namespace import TeamNamespace
from tests.support.team_objects import idle_pod

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]

QUEUE = "gpu-queue"
QUEUE_IS_FULL = "queue resource quota insufficient"
"""How Volcano reports it. Only an Event of the PodGroup has these words."""
ROOM = 1.2
"""CPUs that the other pod leaves: enough for the head and one of the two workers."""


@pytest.fixture
def volcano(disposable_cluster: Cluster) -> Iterator[None]:
    with disposable_cluster.volcano():
        yield


def test_no_pod_starts_before_all_fit(volcano: None, team: TeamNamespace, data: Path, stopwatch: Stopwatch) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()

    # The queue may not use as many CPUs as all pods request together.
    team.apply(queue(cpus=1))
    team.submit(spec__cluster__rayJobLabels={"volcano.sh/queue-name": QUEUE})
    wait_for_blocker(team, "pod group is not ready, 3 Pending, 3 minAvailable")
    assert f"PodGroup ray-triage-a1-pg: {QUEUE_IS_FULL}" in explain(team)

    # The queue has room, and the node has none for the third pod.
    occupy_cpus(team)
    team.apply(queue(cpus=100))
    wait_for_blocker(team, "0/1 nodes are unavailable: 1 Insufficient cpu")

    # All pods fit.
    with stopwatch("all pods fit → first step, with Volcano"):
        team.kubectl("delete", "pod", "other", "--grace-period=0", "--force")
        team.wait_for_step(1)
    finished = team.wait_until_finished(600)
    assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
    assert [attempt["number"] for attempt in finished["attempts"]] == [1]


def queue(cpus: int) -> dict[str, Any]:
    """A queue of Volcano with a limit."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": QUEUE},
        "spec": {"weight": 1, "capability": {"cpu": cpus}},
    }


def wait_for_blocker(team: TeamNamespace, text: str) -> None:
    """Wait until the job reports what keeps its pods, and check that none of the three has a node."""

    def is_reported(status: dict[str, Any]) -> bool:
        ready = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})
        return ready.get("reason") == "Unschedulable" and text in ready["message"]

    team.wait_for_status(is_reported, 120)
    pods = json.loads(team.kubectl("get", "pods", "-l", "tensafe.io/job=triage", "-o", "json"))["items"]
    assert [pod["spec"].get("nodeName") for pod in pods] == [None, None, None]


def occupy_cpus(team: TeamNamespace) -> None:
    """Start a pod of another user that leaves the node ROOM CPUs."""
    (node,) = json.loads(team.kubectl("get", "nodes", "-o", "json"))["items"]
    pods = json.loads(team.kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"]
    running = (pod for pod in pods if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running"))
    used = sum(
        float(parse_quantity(container["resources"].get("requests", {}).get("cpu", "0")))
        for pod in running
        for container in pod["spec"]["containers"]
    )
    free = float(parse_quantity(node["status"]["allocatable"]["cpu"])) - used
    pod = idle_pod("other", images.names_of_ours()[1], "")
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{(free - ROOM) * 1000:.0f}m"}}
    team.apply(pod)
    team.kubectl("wait", "--for=condition=Ready", "pod/other", "--timeout=300s")


def explain(team: TeamNamespace) -> str:
    """What `kubectl tensafe explain` prints about the job."""
    command = [sys.executable, "-m", "tensafe_kubectl.main", "explain", "triage", "-n", team.namespace]
    options = ["--kubeconfig", str(team.kubeconfig)]
    return subprocess.run([*command, *options], check=True, capture_output=True, text=True).stdout
