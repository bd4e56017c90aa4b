"""Pods, RayCluster and RayJob of a training job are removed: it resumes, and only repeated steps cost more ε."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.cluster import Cluster
from tests.support.stopwatch import Stopwatch
from tests.support.team_namespace import JOB, TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400, func_only=True)]

STEPS, MANY_STEPS = 30, 80
"""The second is enough for three removals at one step a second."""
AT_RISK = JOB["spec"]["checkpoint"]["everySteps"] + 1
"""Most steps that are repeated after a kill: those since the last checkpoint, and the one that was charged."""
RECOVERY_SECONDS = 90
"""Goal for the time from the kill of a worker to the next step."""
CHARGED_AHEAD = 1
"""Steps that such a short job charges at a time. One may be charged but not done when a pod is asked to terminate."""
RESERVE = {"spec__privacy__reserveSteps": 40}
"""The budget for repeated steps."""


@pytest.mark.gate
def test_job_with_a_killed_worker_repeats_steps_and_succeeds(
    team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    before = training(team, data)
    kinds = [record["kind"] for worker in team.pod_names("worker") for record in team.log_records(worker)]
    assert {"started", "saved"} <= set(kinds) and "stepped" not in kinds, "log records of the workers"
    with stopwatch("worker killed → next step", goal=RECOVERY_SECONDS):
        team.kill_processes("worker")
        after = team.wait_for_step_of(1, 2)
    assert recharged(after) - recharged(before) <= AT_RISK
    last = wait_until_succeeded(team)
    assert attempts(last) == [1]
    assert recharged(last) > 0
    assert spent(last) > spent(before)


def test_job_whose_head_ray_cluster_and_ray_job_are_removed_succeeds(
    team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    before = training(team, data, MANY_STEPS)

    # The head with the driver: KubeRay creates another head and submits the job again.
    with stopwatch("head killed → next step"):
        team.kill_processes("head")
        team.wait_for_step_of(1, 2)
    after_head = team.wait_for_step(before["progress"]["step"] + 6)
    assert attempts(after_head) == [1]
    assert recharged(after_head) - recharged(before) <= AT_RISK

    # The RayCluster: its pods are asked to terminate, and save a checkpoint first.
    with stopwatch("RayCluster deleted → next step"):
        team.kubectl("delete", "raycluster", "--all", "--wait=false")
        team.wait_for_step_of(1, 3)
    after_cluster = team.wait_for_step(after_head["progress"]["step"] + 6)
    assert attempts(after_cluster) == [1]
    assert recharged(after_cluster) - recharged(after_head) <= CHARGED_AHEAD

    # The RayJob: the driver is asked to stop, and lets the workers save a checkpoint. The next attempt resumes from it.
    with stopwatch("RayJob deleted → next step"):
        team.kubectl("delete", "rayjob", "triage-a1", "--wait=false")
        team.wait_for_step_of(2, 1)
    second = team.wait_for_step(after_cluster["progress"]["step"] + 2)
    assert attempts(second) == [1, 2]
    assert recharged(second) - recharged(after_cluster) <= CHARGED_AHEAD
    last = wait_until_succeeded(team, MANY_STEPS)
    assert spent(before) < spent(after_head) < spent(after_cluster) < spent(second) < spent(last)


def test_pods_that_are_asked_to_terminate_save_a_checkpoint_first(
    disposable_cluster: Cluster, team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    before = training(team, data, 2 * STEPS)

    # One worker's pod: the head stays, and reports that the attempt was interrupted.
    with stopwatch("worker's pod deleted → next step"):
        team.kubectl("delete", "pod", team.pod_names("worker")[0], "--wait=false")
        team.wait_for_step_of(2, 1)
    second = team.wait_for_step(before["progress"]["step"] + 6)
    assert [attempt.get("reason") for attempt in second["attempts"]] == ["Interrupted", None]

    # The node is drained, as for maintenance: all pods terminate at the same time.
    (node,) = team.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    selected = ("--pod-selector=tensafe.io/job=triage", "--delete-emptydir-data", "--force", "--timeout=300s")
    with stopwatch("node drained and uncordoned → next step"):
        try:
            team.kubectl("drain", node, *selected)
        finally:
            team.kubectl("uncordon", node)
        assert team.ledger_status()["outcome"] == "Suspended"
        team.wait_for_step_of(2, 2)  # or the next attempt, if KubeRay reads the driver's exit before its pod is deleted
    last = wait_until_succeeded(team, 2 * STEPS)
    assert recharged(last) <= 2 * CHARGED_AHEAD
    assert spent(before) < spent(second) < spent(last)


def training(team: TeamNamespace, data: Path, steps: int = STEPS) -> dict[str, Any]:
    """Start a job; return its status once it has trained beyond its first checkpoint."""
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit(**RESERVE, spec__training__steps=steps)
    return team.wait_for_step(7)


def wait_until_succeeded(team: TeamNamespace, steps: int = STEPS) -> dict[str, Any]:
    """Wait until the job has succeeded; each step must be charged as often as it was run."""
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
