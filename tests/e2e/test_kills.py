"""What is pulled out from under a job that trains: it goes on from its checkpoint, and ε grows by what is run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clinic import Clinic

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

STEPS = 30


def spent(status: dict[str, Any]) -> float:
    return float((status.get("privacy") or {}).get("epsilonSpent", 0))


def trained_to(step: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: (status.get("progress") or {}).get("step", 0) >= step


def incarnation_of(clinic: Clinic, attempt: int) -> int:
    ledger = clinic.get("privacyledger", clinic.job()["status"]["ledgerName"])
    assert ledger is not None
    charges = (ledger.get("status") or {}).get("charges", [])
    return next((each["incarnation"] for each in charges if each["attempt"] == attempt), 0)


def test_a_killed_worker_and_a_deleted_ray_job_cost_steps_and_the_job_ends_well(clinic: Clinic, data: Path) -> None:
    clinic.upload(data)
    clinic.provide_model()
    clinic.submit(spec__privacy__reserveSteps=20)  # what is run again is paid for out of it
    before = clinic.until(trained_to(7), 600)

    # A worker's pod: the same attempt goes on, as its next incarnation.
    workers = clinic.kubectl("get", "pods", "-l", "ray.io/node-type=worker", "-o", "name").split()
    clinic.kubectl("delete", workers[0], "--grace-period=0", "--force")
    clinic.until(lambda status: incarnation_of(clinic, 1) == 2, 600)
    now = clinic.until(trained_to(before["progress"]["step"] + 6), 600)
    assert [attempt["number"] for attempt in now["attempts"]] == [1]
    assert spent(now) > spent(before)

    # The RayJob: the next attempt.
    clinic.kubectl("delete", "rayjob", "triage-a1", "--wait=false")
    clinic.until(lambda status: [attempt["number"] for attempt in status["attempts"]] == [1, 2], 600)
    last = clinic.until_over(900)
    assert last["phase"] == "Succeeded", json.dumps(last, indent=1)
    assert last["progress"]["step"] == STEPS
    assert spent(last) > spent(now)
    assert last["privacy"]["stepsCharged"] == STEPS + last["privacy"]["stepsRecharged"]
