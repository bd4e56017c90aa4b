"""What a job stands on goes away for a while: it trains on or waits, loses nothing, and nothing is run twice."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.cluster import SYSTEM, Cluster
from e2e.platform.controlplane import kubectl
from e2e.platform.fixtures.stopwatch import Stopwatch
from e2e.platform.fixtures.team_namespace import TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]

STEPS = 40
API_SECONDS, S3_SECONDS = 30, 60


def test_storage_goes_away_for_a_minute(team: TeamNamespace, data: Path, stopwatch: Stopwatch) -> None:
    began = training(team, data)
    team.kubectl("scale", "deployment/s3", "--replicas=0")
    team.kubectl("wait", "--for=delete", "pod", "-l", "app=s3", "--timeout=300s")
    time.sleep(S3_SECONDS)  # what is tried is an outage of that length, in which a checkpoint is due (every five steps)
    team.kubectl("scale", "deployment/s3", "--replicas=1")
    with stopwatch("S3 back after a minute → five steps on"):
        team.wait_for_step(began["progress"]["step"] + 6, 300)

    # Its outage was met by a save, which the pod's log tells.
    assert any("the storage does not answer" in team.kubectl("logs", worker) for worker in team.pod_names("worker"))
    ended_well(team)


def test_operator_api_server_and_etcd_go_away_in_turn(
    disposable_cluster: Cluster, team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    training(team, data)

    # The operator, all of it at once.
    kubectl(team.kubeconfig, "-n", SYSTEM, "delete", "pods", "--all", "--grace-period=0", "--force")
    killed = team.get_job()["status"]
    with stopwatch("operator killed → two steps more in the status"):
        on = team.wait_for_step(killed["progress"]["step"] + 2, 120)

    # The API server: nothing can be charged meanwhile, so nothing is trained.
    plane = disposable_cluster.plane
    plane.kill("apiserver", signal.SIGKILL)
    time.sleep(API_SECONDS)
    plane.start_api_server()
    with stopwatch("API server back after 30 s → two steps on"):
        on = team.wait_for_step(on["progress"]["step"] + 2, 300)

    plane.kill("etcd", signal.SIGKILL)
    plane.start_etcd()
    with stopwatch("etcd restarted → two steps on"):
        team.wait_for_step(on["progress"]["step"] + 2, 300)
    ended_well(team)


def training(team: TeamNamespace, data: Path) -> dict[str, Any]:
    """The status of a job that trains."""
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit(spec__training__steps=STEPS)
    return team.wait_for_step(3)


def ended_well(team: TeamNamespace) -> None:
    """The job comes to its end in one piece: each step was run and charged once."""
    over = team.wait_until_finished(900)
    assert over["phase"] == "Succeeded", json.dumps(over, indent=1)
    assert [attempt["number"] for attempt in over["attempts"]] == [1]
    assert team.incarnation(1) == 1
    assert over["progress"]["step"] == over["privacy"]["stepsCharged"] == STEPS
    assert over["privacy"]["stepsRecharged"] == 0
