"""What is pulled out from under a job that trains: it goes on from its checkpoint, and ε grows by what is run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clinic import Clinic
from stopwatch import Stopwatch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

STEPS = 30
RECOVERY_SECONDS = 90
"""A goal: from the death of a worker to the next step."""
PAID_FOR = {"spec__privacy__reserveSteps": 40}
"""What is run again is paid for out of it."""


@pytest.mark.gate
def test_a_killed_worker_and_a_deleted_ray_job_cost_steps_and_the_job_ends_well(
    clinic: Clinic, data: Path, stopwatch: Stopwatch
) -> None:
    clinic.upload(data)
    clinic.provide_model()
    clinic.submit(**PAID_FOR)
    before = clinic.until_step(7)

    # A worker's pod: the same attempt goes on, as its next incarnation.
    with stopwatch("worker killed → next step", goal=RECOVERY_SECONDS):
        clinic.kill("worker")
        clinic.until_incarnation(1, 2)
        clinic.until_step(before["progress"]["step"] + 1)
    now = clinic.until_step(before["progress"]["step"] + 6)
    assert attempts(now) == [1]
    assert spent(now) > spent(before)

    # The RayJob: the next attempt.
    with stopwatch("RayJob deleted → next step"):
        clinic.kubectl("delete", "rayjob", "triage-a1", "--wait=false")
        clinic.until(lambda status: attempts(status) == [1, 2], 600)
        clinic.until_step(now["progress"]["step"] + 1)
    last = clinic.until_over(900)
    assert last["phase"] == "Succeeded", json.dumps(last, indent=1)
    assert last["progress"]["step"] == STEPS
    assert spent(last) > spent(now)
    assert last["privacy"]["stepsCharged"] == STEPS + last["privacy"]["stepsRecharged"]


def test_a_killed_head_a_deleted_cluster_and_a_drained_node_cost_steps_and_the_job_ends_well(
    clinic: Clinic, data: Path, stopwatch: Stopwatch
) -> None:
    clinic.upload(data)
    clinic.provide_model()
    clinic.submit(**PAID_FOR)
    before = clinic.until_step(7)

    # The head's pod, with the driver: KubeRay makes another and submits again. The same attempt goes on.
    with stopwatch("head killed → next step"):
        clinic.kill("head")
        clinic.until_incarnation(1, 2)
        clinic.until_step(before["progress"]["step"] + 1)
    headless = clinic.until_step(before["progress"]["step"] + 6)
    assert attempts(headless) == [1]
    assert spent(headless) > spent(before)

    # All of its RayCluster.
    with stopwatch("RayCluster deleted → next step"):
        clinic.kubectl("delete", "raycluster", "--all", "--wait=false")
        clinic.until_incarnation(1, 3)
        clinic.until_step(headless["progress"]["step"] + 1)
    again = clinic.until_step(headless["progress"]["step"] + 6)
    assert attempts(again) == [1]
    assert spent(again) > spent(headless)

    # Its node, drained by somebody who maintains it: pods are told to go, and a checkpoint is sealed.
    (node,) = clinic.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    selected = ("--pod-selector=tensafe.io/job=triage", "--delete-emptydir-data", "--force", "--timeout=180s")
    with stopwatch("node drained and given back → next step"):
        try:
            clinic.kubectl("drain", node, *selected)
        finally:
            clinic.kubectl("uncordon", node)
        clinic.until_step(again["progress"]["step"] + 1)
    last = clinic.until_over(900)
    assert last["phase"] == "Succeeded", json.dumps(last, indent=1)
    assert last["progress"]["step"] == STEPS
    assert spent(last) > spent(again)
    assert last["privacy"]["stepsCharged"] == STEPS + last["privacy"]["stepsRecharged"]


def spent(status: dict[str, object]) -> float:
    privacy = status["privacy"]
    assert isinstance(privacy, dict)
    return float(privacy["epsilonSpent"])


def attempts(status: dict[str, list[dict[str, int]]]) -> list[int]:
    return [attempt["number"] for attempt in status["attempts"]]
