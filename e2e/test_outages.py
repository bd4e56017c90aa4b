"""Outages of storage, operator, API server and etcd: the job continues or waits, and no step is lost or repeated."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.cluster import SYSTEM, Cluster
from tests.support.programs.controlplane import kubectl
from tests.support.stopwatch import Stopwatch
from tests.support.team_namespace import TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800, func_only=True)]

STEPS = 40
API_SECONDS, S3_SECONDS = 30, 60


def test_job_continues_while_storage_is_unavailable_for_a_minute(
    team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    started = training(team, data)
    team.kubectl("scale", "deployment/s3", "--replicas=0")
    team.kubectl("wait", "--for=delete", "pod", "-l", "app=s3", "--timeout=300s")
    time.sleep(S3_SECONDS)  # the outage must last until a checkpoint is due (every five steps)
    team.kubectl("scale", "deployment/s3", "--replicas=1")
    with stopwatch("S3 back after a minute → five steps on"):
        team.wait_for_step(started["progress"]["step"] + 6, 300)

    # A worker tried to save during the outage: its log shows it.
    assert any("the storage does not answer" in team.kubectl("logs", worker) for worker in team.pod_names("worker"))
    wait_until_succeeded(team)


def test_job_survives_outages_of_operator_api_server_and_etcd(
    disposable_cluster: Cluster, team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    training(team, data)

    # All replicas of the operator.
    kubectl(team.kubeconfig, "-n", SYSTEM, "delete", "pods", "--all", "--grace-period=0", "--force")
    killed = team.get_job()["status"]
    with stopwatch("operator killed → two steps more in the status"):
        status = team.wait_for_step(killed["progress"]["step"] + 2, 120)

    # The API server: no step can be charged meanwhile, so no step is done.
    plane = disposable_cluster.plane
    plane.kill("apiserver", signal.SIGKILL)
    time.sleep(API_SECONDS)
    plane.start_api_server()
    with stopwatch("API server back after 30 s → two steps on"):
        status = team.wait_for_step(status["progress"]["step"] + 2, 300)

    plane.kill("etcd", signal.SIGKILL)
    plane.start_etcd()
    with stopwatch("etcd restarted → two steps on"):
        team.wait_for_step(status["progress"]["step"] + 2, 300)
    wait_until_succeeded(team)


def training(team: TeamNamespace, data: Path) -> dict[str, Any]:
    """Start a job; return its status once it trains."""
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit(spec__training__steps=STEPS)
    return team.wait_for_step(3)


def wait_until_succeeded(team: TeamNamespace) -> None:
    """Wait until the job has succeeded; each step must be run and charged once."""
    finished = team.wait_until_finished(900)
    assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
    assert [attempt["number"] for attempt in finished["attempts"]] == [1]
    assert team.incarnation(1) == 1
    assert finished["progress"]["step"] == finished["privacy"]["stepsCharged"] == STEPS
    assert finished["privacy"]["stepsRecharged"] == 0
