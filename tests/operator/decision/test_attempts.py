"""The state of an attempt, from its RayJob and the ledger."""

from __future__ import annotations

import pytest

from tensafe_operator import names
from tensafe_operator.decision.diagnosis import POLL_SECONDS
from tests.support.fake_cluster import SETTINGS, condition, running_job, start_next_attempt, started_job


def test_job_succeeds_only_when_ray_and_the_ledger_agree() -> None:
    cluster, operator = running_job()
    cluster.charge(15)
    cluster.record_outcome("Completed")
    operator.settle()
    assert cluster.status["phase"] == "Running"
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "Succeeded"
    assert cluster.status["finalModel"]["uri"] == "s3://m/final"
    assert condition(cluster, "Ready")["status"] == condition(cluster, "Succeeded")["status"] == "True"


@pytest.mark.parametrize("status", ["SUCCEEDED", "STOPPED"])
def test_end_without_a_final_checkpoint_is_a_failed_attempt(status: str) -> None:
    cluster, operator = running_job()
    cluster.end_ray_job(status)
    operator.settle()
    assert cluster.status["phase"] == "Starting"
    assert cluster.status["attempts"][0]["reason"] in ("InternalError", "WorkerLost")


@pytest.mark.parametrize(("code", "recorded"), [(1, 1), (127, 127), (137, 137), (139, 139), (-9, 137)])
def test_exit_code_without_a_reason_is_shown_with_the_place_of_the_log(code: int, recorded: int) -> None:
    """Ray reports a driver that a signal has ended with the signal's number below zero."""
    cluster, operator = running_job()
    cluster.end_ray_job("FAILED", f"Job entrypoint command failed with exit code {code}, last available logs: Jane Doe")
    operator.settle()
    ended = cluster.status["attempts"][0]
    assert (ended["reason"], ended["exitCode"]) == ("WorkerLost", recorded)
    place = "The last lines of the driver's log are in the RayJob's status.message."
    assert ended["message"] == f"KubeRay reports AppFailed, and the driver's exit code is {recorded}. {place}"


def test_message_that_kuberay_wrote_is_not_called_a_log() -> None:
    cluster, operator = running_job()
    cluster.end_ray_job("FAILED", "the submitter has no backoff left")
    (ray_job,) = cluster.ray_jobs.values()
    ray_job["status"]["reason"] = "SubmissionFailed"
    operator.settle()
    message = cluster.status["attempts"][0]["message"]
    assert message == "KubeRay reports SubmissionFailed. The RayJob's status.message may say more."


@pytest.mark.parametrize("status", ["FAILED", "STOPPED"])
def test_attempt_with_outcome_suspended_is_interrupted_whatever_ray_reports(status: str) -> None:
    """The pods terminated before the driver received the end of the workers."""
    cluster, operator = running_job()
    cluster.record_outcome("Suspended")
    cluster.end_ray_job(status)
    operator.settle()
    assert cluster.status["attempts"][0]["reason"] == "Interrupted"
    assert cluster.status["phase"] == "Starting"


def test_exhausted_budget_ends_the_job_with_a_model() -> None:
    cluster, operator = running_job()
    cluster.record_outcome("BudgetExhausted")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "BudgetExhausted"
    assert condition(cluster, "Succeeded")["status"] == "True"
    assert condition(cluster, "Succeeded")["reason"] == "BudgetExhausted"


def test_deleted_ray_job_is_a_failed_attempt() -> None:
    cluster, operator = running_job()
    cluster.delete_ray_job("claims-triage-a1", cluster.ray_jobs["claims-triage-a1"]["metadata"]["uid"])
    operator.settle()
    assert cluster.status["attempts"][0]["message"] == "RayJob claims-triage-a1 was deleted"
    cluster.remove_terminating_pods()
    cluster.now += 11
    operator.settle()
    assert cluster.created == ["claims-triage-a1", "claims-triage-a2"]
    assert cluster.status["privacy"]["stepsCharged"] == 5


@pytest.mark.parametrize("acquired", [False, True], ids=["before-acquisition", "after-acquisition"])
def test_attempt_that_charges_nothing_is_retried_after_the_stall_time(acquired: bool) -> None:
    cluster, operator = started_job()
    cluster.start_pods()
    if acquired:
        cluster.acquire_ledger()
    operator.settle()
    assert operator.wake == cluster.now + SETTINGS.stall_seconds
    cluster.now += SETTINGS.stall_seconds
    operator.settle()
    assert cluster.status["attempts"][0]["reason"] == "WorkerLost"
    assert condition(cluster, "Failed")["status"] == "False"


def test_step_that_takes_too_long_ends_the_attempt_with_the_name_of_the_limit() -> None:
    cluster, operator = running_job()
    cluster.now += 60
    cluster.charge(1)
    operator.settle()
    cluster.now += SETTINGS.stall_seconds
    operator.settle()
    message = cluster.status["attempts"][0]["message"]
    assert message == "no step was charged within 1800 s of the last step, the limit of the chart's value stallSeconds"


def test_first_steps_may_take_long_after_a_long_start() -> None:
    """The ledger gets the time of a step with the next charge, so the time of the first steps is not known."""
    cluster, operator = started_job()
    cluster.start_pods()
    cluster.now += SETTINGS.stall_seconds - 1
    cluster.acquire_ledger()
    cluster.charge(5)
    assert cluster.ledger is not None
    del cluster.ledger["status"]["progress"]
    cluster.now += 60
    operator.settle()
    assert cluster.status["phase"] == "Running"
    assert operator.wake == cluster.now - 60 + 1 + SETTINGS.stall_seconds


def test_first_steps_of_a_later_attempt_may_take_as_long() -> None:
    """The time in the ledger is that of a step of the attempt before."""
    cluster, operator = running_job()
    start_next_attempt(cluster, operator)
    cluster.start_pods()
    operator.settle()
    started = cluster.now
    cluster.now += SETTINGS.stall_seconds - 1
    cluster.acquire_ledger()
    assert cluster.ledger is not None
    before = cluster.ledger["status"]["progress"]
    cluster.charge(5)
    cluster.ledger["status"]["progress"] = before
    cluster.now += 60
    operator.settle()
    assert cluster.status["phase"] == "Running" and operator.wake == started + 2 * SETTINGS.stall_seconds


def test_first_steps_that_never_end_are_a_stall() -> None:
    """All ranks hang in their first steps, so the ledger has no time of a step."""
    cluster, operator = started_job()
    cluster.start_pods()
    cluster.acquire_ledger()
    cluster.charge(5)
    assert cluster.ledger is not None
    del cluster.ledger["status"]["progress"]
    operator.settle()
    cluster.now += 2 * SETTINGS.stall_seconds
    operator.settle()
    (failed, *_) = cluster.status["attempts"]
    limit = "3600 s of the start, twice the chart's value stallSeconds"
    assert (failed["reason"], failed["message"]) == ("WorkerLost", f"the first steps were not over within {limit}")


def test_time_in_the_queue_is_no_stall() -> None:
    cluster, operator = running_job()
    cluster.evict()
    operator.settle()
    assert cluster.status["phase"] == "Queued"
    cluster.now += 2 * SETTINGS.stall_seconds
    operator.settle()
    cluster.readmit()
    operator.settle()
    assert cluster.status["phase"] == "Starting"
    cluster.start_pods()
    started = cluster.now
    cluster.now += SETTINGS.stall_seconds - 1
    assert cluster.ledger is not None
    before = cluster.ledger["status"]["progress"]
    cluster.acquire_ledger()
    cluster.charge(5)
    cluster.ledger["status"]["progress"] = before  # the first steps after the queue run
    cluster.now += 60
    operator.settle()
    assert cluster.status["phase"] == "Running" and operator.wake == started + 2 * SETTINGS.stall_seconds
    cluster.now = started + 2 * SETTINGS.stall_seconds
    operator.settle()
    failed = cluster.status["attempts"][0]
    limit = "3600 s of the start, twice the chart's value stallSeconds"
    assert failed["message"] == f"the first steps were not over within {limit}"
    assert failed["reason"] == "WorkerLost"


def test_job_fails_after_the_last_attempt_that_a_ledger_can_record() -> None:
    cluster, operator = running_job()
    assert cluster.ledger is not None
    record = cluster.ledger["status"]
    record |= {"attempt": 64, "charges": [*record["charges"], {**record["charges"][0], "attempt": 64}]}
    cluster.end_ray_job("FAILED")
    cluster.remove_terminating_pods()
    operator.settle()
    cluster.now += 60
    operator.settle()
    assert (cluster.status["phase"], condition(cluster, "Failed")["reason"]) == ("Failed", "AttemptsExhausted")


def test_number_of_an_attempt_is_read_from_its_name_and_not_from_a_label() -> None:
    cluster, operator = running_job()
    cluster.ray_jobs["claims-triage-a1"]["metadata"]["labels"][names.ATTEMPT] = "64"
    cluster.end_ray_job("FAILED")
    operator.settle()
    cluster.pods = {}
    cluster.now += 60
    operator.settle()
    assert [each["number"] for each in cluster.status["attempts"]] == [1, 2]


def test_attempt_goes_on_where_its_ray_job_was_only_not_served_for_a_while() -> None:
    """The list of RayJobs is empty then, and their pods train."""
    cluster, operator = running_job(spec__retry={"maxAttempts": 1})
    ray_jobs, cluster.ray_jobs, cluster.kuberay = cluster.ray_jobs, {}, False
    operator.settle()
    stalled = condition(cluster, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "KubeRayMissing")
    assert "does not serve RayJobs of ray.io/v1" in stalled["message"]
    assert "Running pods continue: " in stalled["message"]
    assert operator.wake == cluster.now + POLL_SECONDS
    cluster.ray_jobs, cluster.kuberay = ray_jobs, True
    operator.settle()
    assert cluster.status["phase"] == "Running" and condition(cluster, "Stalled")["status"] == "False"
    assert [each.get("endTime") for each in cluster.status["attempts"]] == [None]
