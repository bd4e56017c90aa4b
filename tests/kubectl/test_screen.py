"""What the screen of a job shows of figures that a pod of the job wrote."""

from __future__ import annotations

from typing import Any

import pytest

from tensafe_api.timestamps import parse_time
from tensafe_kubectl.screen import progress_text, state_of, time_run


def remarks(speed: str) -> str:
    progress = {"step": 40, "totalSteps": 100, "stepsPerSecond": speed}
    return progress_text({"status": {"phase": "Running", "progress": progress}})[1]


@pytest.mark.parametrize("speed", ["1e-310", "1e-300", "0", "-2", "-1e-310", "nan", "inf", "-inf", "1e400"])
def test_speed_that_no_training_has_is_unknown(speed: str) -> None:
    assert remarks(speed) == ""


def test_remaining_time_follows_from_the_speed() -> None:
    assert remarks("0.5") == "0.5 steps/s, 2:00 left"
    assert remarks("1e100") == "1e100 steps/s, 0:00 left"


def test_job_that_is_being_deleted_shows_no_older_state() -> None:
    job = {"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}, "status": {"phase": "Running"}}
    assert state_of(job)[0] == "Deleting"


@pytest.mark.parametrize(
    ("queue", "shown"),
    [({}, "10:00"), ({"queuedSeconds": 240}, "6:00"), ({"queuedSince": "2027-01-15T08:07:00Z"}, "7:00")],
    ids=["no queue", "after a queue", "in a queue"],
)
def test_time_in_a_queue_is_no_time_that_an_attempt_ran(queue: dict[str, Any], shown: str) -> None:
    now = parse_time("2027-01-15T08:10:00Z")
    assert now is not None and time_run({"startTime": "2027-01-15T08:00:00Z", **queue}, now) == shown
