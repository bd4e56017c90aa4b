"""The time limit of all attempts together."""

from __future__ import annotations

import pytest

from e2e.platform.fixtures.fake_cluster import condition, running_job
from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import format_time
from tensafe_operator.plan.deadline import check_deadline


def test_deadline_counts_all_attempts_together() -> None:
    cluster, operator = running_job(spec__activeDeadlineSeconds=900)
    cluster.now += 901
    operator.settle()
    assert cluster.status["phase"] == "Failed"
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"
    assert cluster.ray_jobs == {}


def attempt(number: int, start: float | None, end: float | None = None) -> Attempt:
    times = {"start_time": start, "end_time": end}
    return Attempt(number=number, **{name: format_time(at) for name, at in times.items() if at is not None})


def test_time_between_attempts_does_not_count() -> None:
    deadline = check_deadline([attempt(1, 100, 160), attempt(2, 1000)], limit=100, now=1030)
    assert (deadline.exceeded, deadline.at) == (None, 1040)


def test_attempt_that_has_not_started_does_not_count() -> None:
    assert check_deadline([attempt(1, None)], limit=100, now=1030).at == 1130


@pytest.mark.parametrize("now", [1040, 2000])
def test_open_attempt_fails_when_the_deadline_has_passed(now: float) -> None:
    deadline = check_deadline([attempt(1, 100, 160), attempt(2, 1000)], limit=100, now=now)
    assert deadline.exceeded is not None
    assert (deadline.exceeded.reason, deadline.exceeded.state.over) == (Reason.DEADLINE_EXCEEDED, True)


def test_job_without_a_limit_has_no_deadline() -> None:
    deadline = check_deadline([attempt(1, 100)], limit=None, now=1e9)
    assert (deadline.exceeded, deadline.at) == (None, None)
