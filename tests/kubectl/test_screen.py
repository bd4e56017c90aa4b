"""What the screen of a job shows of figures that a pod of the job wrote."""

from __future__ import annotations

import pytest

from tensafe_kubectl.screen import progress_text, state_of


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
