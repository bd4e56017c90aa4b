"""What is pulled out from under a job that trains: it goes on from its checkpoint, and ε grows by what is run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clinic import Clinic
from stopwatch import Stopwatch

from e2e.cluster.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400, func_only=True)]

STEPS, MANY_STEPS = 30, 80
"""The second must outlast four removals, at a step a second."""
RECOVERY_SECONDS = 90
"""A goal: from the death of a worker to the next step."""
PAID_FOR = {"spec__privacy__reserveSteps": 40}
"""What is run again is paid for out of it."""


@pytest.mark.gate
def test_a_killed_worker_costs_steps_and_the_job_ends_well(clinic: Clinic, data: Path, stopwatch: Stopwatch) -> None:
    before = training(clinic, data)
    said = [line["kind"] for worker in clinic.pods("worker") for line in clinic.said(worker)]
    assert {"started", "saved"} <= set(said) and "stepped" not in said, "what the workers' logs say"
    with stopwatch("worker killed → next step", goal=RECOVERY_SECONDS, limit=2 * RECOVERY_SECONDS):
        clinic.kill("worker")
        clinic.until_goes_on(1, 2)
    last = ended_well(clinic)
    assert attempts(last) == [1]
    assert spent(last) > spent(before)


def test_head_cluster_and_ray_job_are_removed_and_the_node_drained_and_the_job_ends_well(
    whole_cluster: Cluster, clinic: Clinic, data: Path, stopwatch: Stopwatch
) -> None:
    before = training(clinic, data, MANY_STEPS)

    def goes_on(what: str, remove: Callable[[], object], before: dict[str, Any], incarnation: int) -> dict[str, Any]:
        """The status some steps after something was removed: the same attempt has gone on, and ε has grown."""
        with stopwatch(f"{what} → next step"):
            remove()
            clinic.until_goes_on(1, incarnation)
        after = clinic.until_step(before["progress"]["step"] + 6)
        assert attempts(after) == [1]
        assert spent(after) > spent(before)
        return after

    # The head's pod, with the driver, and then all of its RayCluster: KubeRay makes another and submits again.
    headless = goes_on("head killed", lambda: clinic.kill("head"), before, 2)
    every_cluster = ("delete", "raycluster", "--all", "--wait=false")
    again = goes_on("RayCluster deleted", lambda: clinic.kubectl(*every_cluster), headless, 3)

    # Its RayJob: the next attempt.
    with stopwatch("RayJob deleted → next step"):
        clinic.kubectl("delete", "rayjob", "triage-a1", "--wait=false")
        clinic.until_goes_on(2, 1)
    second = clinic.until_step(again["progress"]["step"] + 2)
    assert attempts(second) == [1, 2]
    assert spent(second) > spent(again)

    # Its node, drained by somebody who maintains it: all pods are told to go, and the next attempt goes on.
    (node,) = clinic.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    selected = ("--pod-selector=tensafe.io/job=triage", "--delete-emptydir-data", "--force", "--timeout=180s")
    with stopwatch("node drained and given back → next step"):
        try:
            clinic.kubectl("drain", node, *selected)
        finally:
            clinic.kubectl("uncordon", node)
        clinic.until_goes_on(3, 1)
    assert attempts(clinic.job()["status"]) == [1, 2, 3]
    last = ended_well(clinic, MANY_STEPS)
    assert spent(last) > spent(second)


def training(clinic: Clinic, data: Path, steps: int = STEPS) -> dict[str, Any]:
    """The status of a job that has been training beyond its first checkpoint."""
    clinic.upload(data)
    clinic.provide_model()
    clinic.submit(**PAID_FOR, spec__training__steps=steps)
    return clinic.until_step(7)


def ended_well(clinic: Clinic, steps: int = STEPS) -> dict[str, Any]:
    """The status of a job that has come to its end, with each step charged as often as it was run."""
    last = clinic.until_over(900)
    assert last["phase"] == "Succeeded", json.dumps(last, indent=1)
    assert last["progress"]["step"] == steps
    assert last["privacy"]["stepsRecharged"] > 0
    assert last["privacy"]["stepsCharged"] == steps + last["privacy"]["stepsRecharged"]
    return last


def spent(status: dict[str, Any]) -> float:
    return float(status["privacy"]["epsilonSpent"])


def attempts(status: dict[str, Any]) -> list[int]:
    return [attempt["number"] for attempt in status["attempts"]]
