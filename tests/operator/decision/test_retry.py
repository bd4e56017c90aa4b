"""What follows from the end of an attempt."""

from __future__ import annotations

import pytest

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.ledger import MAX_ATTEMPTS
from tensafe_api.resources.status import Attempt
from tensafe_api.timestamps import format_time
from tensafe_kubectl.diagnosis import Seen, diagnose
from tensafe_operator.decision.attempts import Assessment, AttemptState
from tensafe_operator.decision.retry import backoff_end, state_after
from tests.support.fake_cluster import condition, running_job, started_job


def ended(number: int, reason: Reason = Reason.WORKER_LOST) -> Attempt:
    return Attempt(number=number, end_time=format_time(1000), reason=reason.value)


def test_permanent_failure_ends_the_job() -> None:
    cluster, operator = running_job()
    cluster.end_ray_job("FAILED", "exit code 71, last available logs: Jane Doe")  # DatasetUnsuitable
    operator.settle()
    assert cluster.status["phase"] == "Failed"
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "DatasetUnsuitable"
    assert "RayJob's status.message" in failed["message"] and "Jane" not in failed["message"]


def test_job_fails_after_max_attempts() -> None:
    cluster, operator = started_job(spec__retry={"maxAttempts": 2})
    for _ in range(2):
        cluster.start_pods()
        cluster.acquire_ledger()
        cluster.end_ray_job("FAILED")
        operator.settle()
        cluster.remove_terminating_pods()
        cluster.now += 600
        operator.settle()
    assert cluster.status["phase"] == "Failed"
    assert condition(cluster, "Failed")["reason"] == "AttemptsExhausted"
    assert "(retry.maxAttempts is 2)" in condition(cluster, "Failed")["message"]
    assert len(cluster.created) == 2


@pytest.mark.parametrize(("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (24, 300)])
def test_backoff_doubles_with_each_failure_up_to_five_minutes(failures: int, seconds: float) -> None:
    attempts = [ended(number) for number in range(1, failures + 1)]
    assert backoff_end(attempts, attempts[-1]) == 1000 + seconds


def test_job_survives_an_outage_of_a_weekend_before_its_ledger_has_no_number_left() -> None:
    attempts, now = [ended(1)], 1000.0
    for number in range(2, MAX_ATTEMPTS + 1):
        now = backoff_end(attempts, attempts[-1])
        attempts.append(ended(number).model_copy(update={"end_time": format_time(now)}))
    assert 40 * 3600 < now < 48 * 3600


def test_interrupted_attempt_is_repeated_at_once_and_not_counted() -> None:
    attempts = [ended(1), ended(2, Reason.INTERRUPTED)]
    assert backoff_end(attempts, attempts[-1]) == 1000
    failed = Assessment(AttemptState.FAILED, Reason.WORKER_LOST)
    assert state_after(failed, [*attempts, ended(3)], [1, 2, 3], 3, suspend=False).phase is Phase.STARTING
    assert state_after(failed, [*attempts, ended(3)], [1, 2, 3], 2, suspend=False).phase is Phase.FAILED


def test_job_whose_attempt_was_interrupted_does_not_report_a_failure() -> None:
    """A drained node is no failure of the job."""
    cluster, operator = running_job()
    cluster.record_outcome("Suspended")
    cluster.end_ray_job("FAILED")
    for message in (Reason.RETRYING.sentence, "Waiting until the pods of the last attempt have terminated."):
        operator.reconcile(cluster.observe())
        ready = condition(cluster, "Ready")
        assert (ready["reason"], ready["message"]) == ("Retrying", message)
        assert "failed" not in diagnose(Seen(cluster.job), cluster.now).what
    assert cluster.status["attempts"][0]["reason"] == "Interrupted"


@pytest.mark.slow
def test_attempts_that_never_acquired_the_ledger_are_not_counted() -> None:
    """For days no node has room, the hub does not answer, an image is missing: nothing is spent, and the job waits."""
    cluster, operator = started_job(spec__retry={"maxAttempts": 1})
    for _ in range(20):
        cluster.start_pods()
        cluster.end_ray_job("FAILED", "exit code 72")  # ModelUnavailable
        operator.settle()
        cluster.remove_terminating_pods()
        cluster.now += 600
        operator.settle()
        assert cluster.status["phase"] == "Starting"
    cluster.start_pods()
    cluster.acquire_ledger()
    cluster.charge(1)
    operator.settle()
    assert cluster.status["phase"] == "Running"
    cluster.end_ray_job("FAILED")
    operator.settle()
    assert condition(cluster, "Failed")["reason"] == "AttemptsExhausted"


def test_job_without_a_deadline_for_its_start_waits_for_ever() -> None:
    cluster, operator = started_job()
    cluster.ray_jobs["claims-triage-a1"]["status"] = {
        "jobDeploymentStatus": "Initializing",
        "startTime": format_time(cluster.now),
    }
    cluster.now += 1e7
    operator.settle()
    assert cluster.status["phase"] == "Starting"


@pytest.mark.parametrize(
    ("state", "suspend", "phase"),
    [
        (AttemptState.SUCCEEDED, False, Phase.SUCCEEDED),
        (AttemptState.EXHAUSTED, False, Phase.BUDGET_EXHAUSTED),
        (AttemptState.SUSPENDED, True, Phase.SUSPENDED),
        (AttemptState.SUSPENDED, False, Phase.STARTING),
        (AttemptState.FAILED, False, Phase.STARTING),
        (AttemptState.FAILED, True, Phase.STARTING),
    ],
)
def test_phase_after_the_end_of_an_attempt(state: AttemptState, suspend: bool, phase: Phase) -> None:
    assert state_after(Assessment(state, Reason.WORKER_LOST), [ended(1)], [1], 5, suspend=suspend).phase is phase


@pytest.mark.slow
def test_job_without_numbers_for_more_attempts_names_what_the_last_one_failed_of() -> None:
    """Attempts that spend nothing are not counted as failures, but the ledger has a number for each of them."""
    cluster, operator = started_job()
    for _ in range(MAX_ATTEMPTS):
        assert cluster.status["phase"] == "Starting"
        cluster.start_pods()
        operator.settle()
        cluster.end_ray_job("FAILED", "exit code 70")
        operator.settle()
        cluster.remove_terminating_pods()
        cluster.now += 4_000
        operator.settle()
    failed = condition(cluster, "Failed")
    assert (cluster.status["phase"], failed["reason"]) == ("Failed", "AttemptsExhausted")
    assert f"at most {MAX_ATTEMPTS} attempts" in failed["message"]
    assert f"attempt {MAX_ATTEMPTS}: {Reason.DATASET_UNREADABLE.sentence}" in failed["message"]
    assert failed["message"].endswith(Reason.ATTEMPTS_EXHAUSTED.fix)
