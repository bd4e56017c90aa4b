"""What is pulled out from under a job that trains: it goes on from its checkpoint, and ε grows by what is run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.cluster import Cluster
from e2e.platform.fixtures.stopwatch import Stopwatch
from e2e.platform.fixtures.team_namespace import JOB, TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400, func_only=True)]

STEPS, MANY_STEPS = 30, 80
"""The second must outlast three removals, at a step a second."""
AT_RISK = JOB["spec"]["checkpoint"]["everySteps"] + 1
"""Steps that are run again after a kill, at most: those since the last checkpoint, and the one that was charged."""
RECOVERY_SECONDS = 90
"""A goal: from the death of a worker to the next step."""
PAID_AHEAD = 1
"""Steps that are charged at once, in so short a job: one may be paid for and not made when a pod is told to go."""
PAID_FOR = {"spec__privacy__reserveSteps": 40}
"""What is run again is paid for out of it."""


@pytest.mark.gate
def test_a_killed_worker_costs_steps_and_the_job_ends_well(
    team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    before = training(team, data)
    said = [line["kind"] for worker in team.pod_names("worker") for line in team.log_records(worker)]
    assert {"started", "saved"} <= set(said) and "stepped" not in said, "what the workers' logs say"
    with stopwatch("worker killed → next step", goal=RECOVERY_SECONDS):
        team.kill_processes("worker")
        after = team.wait_for_step_of(1, 2)
    assert recharged(after) - recharged(before) <= AT_RISK
    last = ended_well(team)
    assert attempts(last) == [1]
    assert recharged(last) > 0
    assert spent(last) > spent(before)


def test_head_cluster_and_ray_job_are_removed_and_the_job_ends_well(
    team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    before = training(team, data, MANY_STEPS)

    # The head, with the driver: KubeRay makes another and submits again.
    with stopwatch("head killed → next step"):
        team.kill_processes("head")
        team.wait_for_step_of(1, 2)
    headless = team.wait_for_step(before["progress"]["step"] + 6)
    assert attempts(headless) == [1]
    assert recharged(headless) - recharged(before) <= AT_RISK

    # All of its RayCluster: its pods are told to go, and seal a checkpoint before they do.
    with stopwatch("RayCluster deleted → next step"):
        team.kubectl("delete", "raycluster", "--all", "--wait=false")
        team.wait_for_step_of(1, 3)
    again = team.wait_for_step(headless["progress"]["step"] + 6)
    assert attempts(again) == [1]
    assert recharged(again) - recharged(headless) <= PAID_AHEAD

    # Its RayJob: the driver is asked to stop, and has the workers seal a checkpoint; the next attempt goes on from it.
    with stopwatch("RayJob deleted → next step"):
        team.kubectl("delete", "rayjob", "triage-a1", "--wait=false")
        team.wait_for_step_of(2, 1)
    second = team.wait_for_step(again["progress"]["step"] + 2)
    assert attempts(second) == [1, 2]
    assert recharged(second) - recharged(again) <= PAID_AHEAD
    last = ended_well(team, MANY_STEPS)
    assert spent(before) < spent(headless) < spent(again) < spent(second) < spent(last)


def test_pods_that_are_told_to_go_seal_a_checkpoint_before_they_do(
    disposable_cluster: Cluster, team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    before = training(team, data, 2 * STEPS)

    # One worker's pod: the head stays, and says that the attempt was interrupted.
    with stopwatch("worker's pod deleted → next step"):
        team.kubectl("delete", "pod", team.pod_names("worker")[0], "--wait=false")
        team.wait_for_step_of(2, 1)
    second = team.wait_for_step(before["progress"]["step"] + 6)
    assert [attempt.get("reason") for attempt in second["attempts"]] == ["Interrupted", None]

    # The node, drained by somebody who maintains it: all pods at once.
    (node,) = team.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    selected = ("--pod-selector=tensafe.io/job=triage", "--delete-emptydir-data", "--force", "--timeout=300s")
    with stopwatch("node drained and given back → next step"):
        try:
            team.kubectl("drain", node, *selected)
        finally:
            team.kubectl("uncordon", node)
        assert team.ledger_status()["outcome"] == "Suspended"
        team.wait_for_step_of(2, 2)  # or the next attempt, where KubeRay hears the driver before its pod is gone
    last = ended_well(team, 2 * STEPS)
    assert recharged(last) <= 2 * PAID_AHEAD
    assert spent(before) < spent(second) < spent(last)


def training(team: TeamNamespace, data: Path, steps: int = STEPS) -> dict[str, Any]:
    """The status of a job that has been training beyond its first checkpoint."""
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit(**PAID_FOR, spec__training__steps=steps)
    return team.wait_for_step(7)


def ended_well(team: TeamNamespace, steps: int = STEPS) -> dict[str, Any]:
    """The status of a job that has come to its end, with each step charged as often as it was run."""
    last = team.wait_until_finished(900)
    assert last["phase"] == "Succeeded", json.dumps(last, indent=1)
    assert last["progress"]["step"] == steps
    assert last["privacy"]["stepsCharged"] == steps + recharged(last)
    return last


def recharged(status: dict[str, Any]) -> int:
    return int(status["privacy"]["stepsRecharged"])


def spent(status: dict[str, Any]) -> float:
    return float(status["privacy"]["epsilonSpent"])


def attempts(status: dict[str, Any]) -> list[int]:
    return [attempt["number"] for attempt in status["attempts"]]
