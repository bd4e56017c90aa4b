"""When RayJobs of ended attempts and the key of an ended job are deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensafe_api.timestamps import format_time
from tensafe_operator.decision import decide
from tensafe_operator.decision.cleanup import KEPT_SECONDS
from tensafe_operator.decision.observation import Delete
from tensafe_operator.job_tls import IssuerRef, JobTls, TlsMode
from tests.support.fake_cluster import SETTINGS, FakeOperator, Killed, running_job


def test_ray_job_of_a_failed_attempt_is_kept_for_its_logs() -> None:
    cluster, operator = running_job(spec__childrenTTLSeconds=0)
    cluster.end_ray_job("FAILED", "exit code 71")
    cluster.pods.clear()
    operator.settle()
    assert operator.wake == cluster.now + KEPT_SECONDS
    assert cluster.ray_jobs
    cluster.now += KEPT_SECONDS
    operator.settle()
    assert cluster.ray_jobs == {}


def test_ray_job_of_a_successful_job_is_kept_for_its_ttl() -> None:
    cluster, operator = running_job(spec__childrenTTLSeconds=100)
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert operator.wake == cluster.now + 100
    cluster.now += 100
    operator.settle()
    assert cluster.ray_jobs == {}


def test_ray_job_that_still_runs_after_the_end_of_the_job_is_deleted() -> None:
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    cluster.ray_jobs["claims-triage-a1"]["status"] = {}
    operator.settle()
    assert cluster.ray_jobs == {}


def test_pods_of_the_last_attempt_are_kept_as_long_as_the_job_says() -> None:
    cluster, operator = running_job(spec__podsTTLSeconds=1800, spec__childrenTTLSeconds=100)
    ray_job = cluster.ray_jobs["claims-triage-a1"]
    assert ray_job["spec"]["ttlSecondsAfterFinished"] == 1800
    cluster.end_ray_job("FAILED", "exit code 71")  # a failure that ends the job
    operator.settle()
    assert cluster.status["phase"] == "Failed"
    cluster.now += 1799
    operator.settle()
    assert cluster.ray_jobs, "its deletion would delete the pods"
    cluster.now += 1
    operator.settle()
    assert cluster.ray_jobs == {}


def test_kept_pods_of_a_failed_attempt_do_not_delay_the_next_one() -> None:
    cluster, operator = running_job(spec__podsTTLSeconds=86400)
    for ray_job in cluster.live_ray_jobs():  # KubeRay keeps the pods
        ray_job["status"] |= {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "reason": "AppFailed"}
    operator.settle()
    assert list(cluster.ray_jobs) == ["claims-triage-a1"], "the backoff has not passed, so the logs are there"
    cluster.now += 10
    operator.settle()
    assert cluster.ray_jobs == {}
    cluster.remove_terminating_pods()
    operator.settle()
    assert list(cluster.ray_jobs) == ["claims-triage-a2"]
    assert not cluster.overlapping


def test_ray_job_without_pods_is_kept_for_the_log_of_its_driver() -> None:
    """KubeRay has deleted its pods before the backoff has passed."""
    cluster, operator = running_job(spec__podsTTLSeconds=5)
    cluster.end_ray_job("FAILED", "exit code 64")
    operator.settle()
    cluster.now += 10
    cluster.remove_terminating_pods()
    operator.settle()
    assert list(cluster.ray_jobs) == ["claims-triage-a1", "claims-triage-a2"]


def test_suspended_job_keeps_no_pods() -> None:
    cluster, operator = running_job(spec__podsTTLSeconds=86400)
    cluster.suspend(True)
    operator.settle()
    cluster.record_outcome("Suspended")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "Suspended"
    assert cluster.ray_jobs == {}


@pytest.mark.parametrize(("ray_job", "message"), [("SUCCEEDED", ""), ("FAILED", "exit code 71")])
def test_ended_job_is_deleted_after_its_ttl_and_not_before(ray_job: str, message: str) -> None:
    cluster, operator = running_job(spec__ttlSecondsAfterFinished=50)
    own = Delete("TenSafeTrainingJob", "claims-triage", cluster.job["metadata"]["uid"])
    assert own not in decide(cluster.observe(), cluster.now + 1e6, SETTINGS).actions, "it has not ended"
    if ray_job == "SUCCEEDED":
        cluster.record_outcome("Completed")
    cluster.end_ray_job(ray_job, message)
    operator.settle()
    assert cluster.status["completionTime"] == format_time(cluster.now)
    cluster.remove_terminating_pods()
    cluster.pods = {}
    operator.settle()
    assert operator.wake == cluster.now + 50
    assert own not in decide(cluster.observe(), cluster.now + 49, SETTINGS).actions
    decision = decide(cluster.observe(), cluster.now + 50, SETTINGS)
    assert own in decision.actions and decision.irreversible
    assert all(getattr(each, "kind", "") != "PrivacyLedger" for each in decision.actions)


@pytest.mark.parametrize(("pods_ttl", "seconds"), [(None, 50), (1800, 1800)])
def test_pod_on_a_lost_node_keeps_no_ended_job_for_ever(pods_ttl: int | None, seconds: int) -> None:
    changes = {} if pods_ttl is None else {"spec__podsTTLSeconds": pods_ttl}
    cluster, operator = running_job(spec__ttlSecondsAfterFinished=50, **changes)
    own = Delete("TenSafeTrainingJob", "claims-triage", cluster.job["metadata"]["uid"])
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert own not in decide(cluster.observe(), cluster.now + seconds - 1, SETTINGS).actions
    decision = decide(cluster.observe(), cluster.now + seconds, SETTINGS)
    assert own in decision.actions


def test_job_without_a_ttl_is_never_deleted() -> None:
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    cluster.pods.clear()
    operator.settle()
    deleted = {each.kind for each in decide(cluster.observe(), cluster.now + 1e9, SETTINGS).actions}
    assert deleted == {"RayJob", "Secret"}


@pytest.mark.parametrize(
    ("outcome", "ray_job", "message", "phase"),
    [
        ("Completed", "SUCCEEDED", "", "Succeeded"),
        ("BudgetExhausted", "SUCCEEDED", "", "BudgetExhausted"),
        (None, "FAILED", "exit code 71", "Failed"),
    ],
)
def test_key_is_deleted_once_when_the_job_has_ended(
    outcome: str | None, ray_job: str, message: str, phase: str
) -> None:
    cluster, operator = running_job()
    assert len(cluster.keys()) == 1
    if outcome:
        cluster.record_outcome(outcome)
    cluster.end_ray_job(ray_job, message)
    operator.settle()
    assert (cluster.status["phase"], cluster.status["keyDeleted"]) == (phase, True)
    assert not cluster.keys()
    assert decide(cluster.observe(), cluster.now, SETTINGS).actions == ()


def test_key_is_kept_while_another_attempt_may_start() -> None:
    cluster, operator = running_job()
    cluster.end_ray_job("FAILED")
    operator.settle()
    assert cluster.status["phase"] == "Starting"
    cluster.suspend(True)
    operator.settle()
    assert cluster.status["phase"] == "Suspended"
    assert cluster.keys()
    assert "keyDeleted" not in cluster.status


def test_key_is_deleted_after_the_end_is_stored() -> None:
    """If the operator dies in between, the next one still knows that the job has ended, and starts no attempt."""
    cluster, operator = running_job()
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    cluster.take_snapshot()
    operator.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    assert cluster.keys()
    cluster.take_snapshot()
    with pytest.raises(Killed):
        operator.reconcile(dies_after=1)  # between the deletion and the status
    assert not cluster.keys()
    FakeOperator(cluster).settle()
    assert cluster.status["keyDeleted"] is True


@pytest.mark.parametrize(("outcome", "ray_job"), [("Completed", "SUCCEEDED"), (None, "FAILED")])
def test_secret_of_an_attempt_is_deleted_when_the_attempt_has_ended(outcome: str | None, ray_job: str) -> None:
    cluster, operator = running_job()
    operator.settle()
    assert len(cluster.tls_secrets()) == 1
    if outcome:
        cluster.record_outcome(outcome)
    cluster.end_ray_job(ray_job)
    operator.settle()
    assert cluster.ray_jobs, "it is kept for its logs"
    assert not cluster.tls_secrets()


def test_each_attempt_has_a_secret_of_its_own() -> None:
    cluster, operator = running_job()
    (first,) = cluster.tls_secrets()
    cluster.end_ray_job("FAILED")
    operator.settle()
    cluster.remove_terminating_pods()
    cluster.now += 600
    operator.settle()
    (second,) = cluster.tls_secrets()
    assert cluster.created == ["claims-triage-a1", "claims-triage-a2"]
    assert second.startswith("claims-triage-a2-tls-") and first.startswith("claims-triage-a1-tls-")


def test_secret_of_an_attempt_is_deleted_again_if_the_operator_died_before_it_stored_the_end() -> None:
    cluster, operator = running_job()
    cluster.end_ray_job("FAILED")
    cluster.take_snapshot()
    with pytest.raises(Killed):
        operator.reconcile(dies_after=0)
    assert cluster.tls_secrets()
    FakeOperator(cluster).settle()
    assert not cluster.tls_secrets()


def test_secret_of_an_attempt_is_deleted_with_its_ray_job_when_the_job_is_suspended() -> None:
    cluster, operator = running_job()
    cluster.suspend(True)
    operator.settle()
    cluster.now += 1000
    operator.settle()
    assert cluster.ray_jobs == {}
    assert not cluster.tls_secrets()


def test_secret_of_an_attempt_is_deleted_when_a_user_has_deleted_its_ray_job() -> None:
    """KubeRay's finalizer may hold the RayJob for some time."""
    cluster, operator = running_job()
    cluster.ray_jobs["claims-triage-a1"]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    cluster.end_ray_job("STOPPED")
    operator.settle()
    assert cluster.status["attempts"][0]["endTime"]
    assert not [each for each in cluster.tls_secrets() if each.startswith("claims-triage-a1-")]


def test_secret_of_an_attempt_is_deleted_when_its_ray_job_is_gone() -> None:
    """A user has deleted it, and the operator has seen nothing of it since."""
    cluster, operator = running_job()
    cluster.delete_ray_job("claims-triage-a1", cluster.ray_jobs["claims-triage-a1"]["metadata"]["uid"])
    operator.settle()
    assert cluster.status["attempts"][0]["message"] == "RayJob claims-triage-a1 was deleted"
    assert not cluster.tls_secrets()


def test_certificate_and_secret_of_cert_manager_are_deleted_with_the_attempt() -> None:
    cluster, _ = running_job()
    cluster.end_ray_job("FAILED")
    tls = JobTls(mode=TlsMode.CERT_MANAGER, issuer_ref=IssuerRef(name="clinic"))
    actions = decide(cluster.observe(), cluster.now, replace(SETTINGS, job_tls=tls)).actions
    (secret,) = cluster.tls_secrets()
    assert [(each.kind, each.name) for each in actions if isinstance(each, Delete)] == [
        ("Secret", secret),
        ("Certificate", f"{secret}-ca"),
        ("Secret", f"{secret}-ca"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "database-password",
        "other-a1-tls-01234567",
        "claims-triage-a2-tls-01234567",
        "claims-triage-a1-tls-",
        "claims-triage-a1-tls-website",
        "claims-triage-a1-tls-0123456",
        "claims-triage-a1-tls-0123456g",
        "claims-triage-a1-tls-01234567-ca",
        "claims-triage-a1-tls-012345678",
    ],
)
def test_annotation_that_a_user_has_edited_deletes_no_other_secret(name: str) -> None:
    cluster, operator = running_job()
    cluster.others.add(("Secret", name))
    cluster.ray_jobs["claims-triage-a1"]["metadata"]["annotations"]["tensafe.io/tls-secret"] = name
    cluster.end_ray_job("FAILED")
    operator.settle()
    assert ("Secret", name) in cluster.others


@pytest.mark.parametrize("name", ["database-password", "claims-triage-22222222-key-01234567"])
def test_no_secret_is_deleted_that_the_operator_did_not_name(name: str) -> None:
    """A user who may create ledgers could name any Secret in one."""
    cluster, operator = running_job()
    assert cluster.ledger is not None
    cluster.ledger["spec"]["keySecretName"] = name
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    operator.settle()
    assert cluster.status["phase"] == "Succeeded"
    assert not [
        each
        for each in decide(cluster.observe(), cluster.now, SETTINGS).actions
        if isinstance(each, Delete) and each.kind == "Secret"
    ]
    assert "keyDeleted" not in cluster.status
