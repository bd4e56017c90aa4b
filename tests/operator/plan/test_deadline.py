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


def test_time_in_the_queue_does_not_count() -> None:
    waited = attempt(1, 100).model_copy(update={"queued_seconds": 50, "queued_since": format_time(170)})
    assert check_deadline([waited], limit=100, now=1000).exceeded is None
    assert check_deadline([waited], limit=100, now=1000).at == 1080
    ended = attempt(1, 100, 300).model_copy(update={"queued_seconds": 150})
    assert check_deadline([ended, attempt(2, 1000)], limit=100, now=1030).at == 1050


def test_evicted_job_keeps_its_time() -> None:
    """From the start: 300 s of training, two hours in the queue, 300 s, an hour, and 300 s."""
    cluster, operator = running_job(spec__activeDeadlineSeconds=1000)
    for queued in (7200, 3600):
        cluster.now += 300
        operator.settle()
        cluster.evict()
        operator.settle()
        assert cluster.status["phase"] == "Queued"
        cluster.now += queued
        cluster.readmit()
        cluster.start_pods()
        operator.settle()
        cluster.acquire_ledger()
        cluster.charge(1)
        operator.settle()
        assert cluster.status["phase"] == "Running"
    cluster.now += 300
    operator.settle()
    assert cluster.status["phase"] == "Running"
    assert cluster.status["attempts"][0]["queuedSeconds"] == 10_800
    cluster.now += 200
    operator.settle()
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize("now", [1040, 2000])
def test_open_attempt_fails_when_the_deadline_has_passed(now: float) -> None:
    deadline = check_deadline([attempt(1, 100, 160), attempt(2, 1000)], limit=100, now=now)
    assert deadline.exceeded is not None
    assert (deadline.exceeded.reason, deadline.exceeded.state.over) == (Reason.DEADLINE_EXCEEDED, True)


def test_job_without_a_limit_has_no_deadline() -> None:
    deadline = check_deadline([attempt(1, 100)], limit=None, now=1e9)
    assert (deadline.exceeded, deadline.at) == (None, None)
