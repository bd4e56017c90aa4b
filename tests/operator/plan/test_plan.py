"""A job's life, decision by decision."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import (
    JOB_UID,
    SETTINGS,
    FakeCluster,
    FakeOperator,
    Killed,
    condition,
    running_job,
    started_job,
)
from tensafe_api.reasons import Reason
from tensafe_operator import names
from tensafe_operator.plan.admission import Rejected
from tensafe_operator.plan.cleanup import KEPT_SECONDS
from tensafe_operator.plan.predecessors import FORGOTTEN_SECONDS


def test_a_ledger_then_a_record_then_a_ray_job() -> None:
    world = FakeCluster.with_job()
    operator = FakeOperator(world)
    with pytest.raises(Killed):
        operator.reconcile(dies_after=1)
    assert {kind for kind, _ in world.others} == {"Secret"} and world.ledger is None
    with pytest.raises(Killed):
        operator.reconcile(dies_after=2)
    assert world.ledger is not None and "ledgerUID" not in world.status and not world.ray_jobs
    world.remember()
    with pytest.raises(Killed):
        operator.reconcile(dies_after=1)
    assert world.status["ledgerUID"] == world.ledger["metadata"]["uid"] and not world.ray_jobs
    assert world.status["attempts"] == [{"number": 1, "rayJobName": "claims-triage-a1"}]
    world.remember()
    operator.reconcile()
    assert list(world.ray_jobs) == ["claims-triage-a1"]
    assert {kind for kind, _ in world.others} == {"RoleBinding", "Secret", "NetworkPolicy", "ConfigMap"}
    assert world.status["phase"] == "Starting"


def test_it_runs_and_tells_what_was_spent() -> None:
    world, _ = running_job()
    assert world.status["phase"] == "Running"
    assert world.status["privacy"]["stepsCharged"] == 5
    assert 0 < float(world.status["privacy"]["epsilonSpent"]) < float(world.status["privacy"]["epsilonClaimed"]) <= 8
    assert world.status["progress"]["step"] == 5


def test_workers_that_went_and_cannot_come_back_are_told() -> None:
    """As after a drain, where no other node has room: the ledger still says that steps are being made."""
    world, operator = running_job()
    (worker,) = (pod for name, pod in world.pods.items() if name.endswith("worker"))
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: no room"}
    before, worker["status"] = worker["status"], {"phase": "Pending", "conditions": [no_room]}
    operator.settle()
    assert world.status["phase"] == "Starting"
    assert condition(world, "Stalled")["reason"] == "Unschedulable"
    worker["status"] = before
    operator.settle()
    assert world.status["phase"] == "Running"
    assert condition(world, "Stalled")["status"] == "False"


def test_it_succeeds_only_when_ray_and_the_ledger_say_so() -> None:
    world, operator = running_job()
    world.charge(15)
    world.outcome("Completed")
    operator.settle()
    assert world.status["phase"] == "Running"
    world.end_ray_job("SUCCEEDED")
    operator.settle()
    assert world.status["phase"] == "Succeeded"
    assert world.status["finalModel"]["uri"] == "s3://m/final"
    assert condition(world, "Ready")["status"] == condition(world, "Succeeded")["status"] == "True"


@pytest.mark.parametrize("status", ["SUCCEEDED", "STOPPED"])
def test_what_ray_calls_the_end_without_a_final_release_is_a_failed_attempt(status: str) -> None:
    world, operator = running_job()
    world.end_ray_job(status)
    operator.settle()
    assert world.status["phase"] == "Starting"
    assert world.status["attempts"][0]["reason"] in ("InternalError", "WorkerLost")


@pytest.mark.parametrize("status", ["FAILED", "STOPPED"])
def test_an_attempt_that_the_ledger_calls_suspended_was_interrupted_whatever_ray_says(status: str) -> None:
    """Its pods were told to go, and gone before the driver had heard of the workers' end."""
    world, operator = running_job()
    world.outcome("Suspended")
    world.end_ray_job(status)
    operator.settle()
    assert world.status["attempts"][0]["reason"] == "Interrupted"
    assert world.status["phase"] == "Starting"


def test_an_exhausted_budget_is_an_end_with_a_model() -> None:
    world, operator = running_job()
    world.outcome("BudgetExhausted")
    world.end_ray_job("SUCCEEDED")
    operator.settle()
    assert world.status["phase"] == "BudgetExhausted"
    assert condition(world, "Succeeded")["status"] == "True"
    assert condition(world, "Succeeded")["reason"] == "BudgetExhausted"


def test_a_final_job_is_never_run_again_whatever_is_deleted() -> None:
    world, operator = running_job()
    world.outcome("Completed")
    world.end_ray_job("SUCCEEDED")
    operator.settle()
    world.now += 3601
    operator.settle()
    assert world.ray_jobs == {}
    world.ledger = None
    before = world.status
    operator.settle()
    assert world.status == before
    assert world.made == ["claims-triage-a1"]


def test_the_next_attempt_waits_for_the_pods_of_the_last_one() -> None:
    world, operator = running_job()
    world.end_ray_job("FAILED", "Job entrypoint command failed with exit code 1, last available logs: Jane Doe")
    operator.settle()
    assert world.status["attempts"][0]["reason"] == "WorkerLost"
    assert "Jane" not in str(world.status)
    world.now += 11
    operator.settle()
    assert world.status["attempts"][-1]["number"] == 2
    assert list(world.ray_jobs) == ["claims-triage-a1"]
    world.remove_going_pods()
    operator.settle()
    assert world.made == ["claims-triage-a1", "claims-triage-a2"]


def test_a_pod_on_a_node_that_is_gone_blocks_for_five_minutes() -> None:
    world, operator = running_job()
    world.end_ray_job("FAILED")
    operator.settle()
    world.now += 11
    operator.settle()
    assert len(world.made) == 1
    world.now += FORGOTTEN_SECONDS
    operator.settle()
    assert len(world.made) == 2


def test_a_deleted_ray_job_is_an_attempt_that_failed() -> None:
    world, operator = running_job()
    world.delete_ray_job("claims-triage-a1", world.ray_jobs["claims-triage-a1"]["metadata"]["uid"])
    operator.settle()
    assert world.status["attempts"][0]["message"] == "its RayJob was deleted"
    world.remove_going_pods()
    world.now += 11
    operator.settle()
    assert world.made == ["claims-triage-a1", "claims-triage-a2"]
    assert world.status["privacy"]["stepsCharged"] == 5


def test_a_failure_that_would_come_again_ends_the_job() -> None:
    world, operator = running_job()
    world.end_ray_job("FAILED", "exit code 71, last available logs: Jane Doe")  # DatasetUnsuitable
    operator.settle()
    assert world.status["phase"] == "Failed"
    failed = condition(world, "Failed")
    assert failed["reason"] == "DatasetUnsuitable"
    assert "RayJob's status.message" in failed["message"] and "Jane" not in failed["message"]


def test_attempts_come_to_an_end() -> None:
    world, operator = started_job(spec__retry={"maxAttempts": 2})
    for _ in range(2):
        world.start_pods()
        world.end_ray_job("FAILED")
        operator.settle()
        world.remove_going_pods()
        world.now += 600
        operator.settle()
    assert world.status["phase"] == "Failed"
    assert condition(world, "Failed")["reason"] == "AttemptsExhausted"
    assert len(world.made) == 2


def test_a_field_that_a_later_apply_dropped_does_not_stop_the_counting() -> None:
    world, operator = running_job()
    applied = {"spec": {**world.job["spec"], "cluster": {**world.job["spec"]["cluster"], "wokers": 3}}}
    annotation = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    world.job["metadata"]["annotations"] = annotation
    world.charge(10)
    operator.settle()
    assert (world.status["phase"], world.status["privacy"]["stepsCharged"]) == ("Running", 15)


def test_a_manifest_that_a_newer_release_refuses_does_not_stop_the_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    world, operator = running_job()
    spent = float(world.status["privacy"]["epsilonSpent"])
    refused = Rejected(Reason.INVALID_MANIFEST, "spec.privacy.accountant: is not known any more")
    monkeypatch.setattr("tensafe_operator.plan.admit", lambda job, begun: refused)
    world.charge(5)
    operator.settle()
    assert world.status["privacy"]["stepsCharged"] == 10
    assert float(world.status["privacy"]["epsilonSpent"]) > spent
    assert world.status["phase"] == "Running"
    assert (condition(world, "Stalled")["status"], condition(world, "Accepted")["status"]) == ("True", "False")
    world.outcome("Completed")
    world.end_ray_job("SUCCEEDED")
    operator.settle()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.parametrize("outcome", ["Completed", "BudgetExhausted"])
def test_a_status_that_was_cleared_after_the_end_does_not_begin_anew(outcome: str) -> None:
    world, operator = running_job()
    world.outcome(outcome)
    world.end_ray_job("SUCCEEDED")
    operator.settle()
    world.job["status"] = {}
    world.ray_jobs, world.pods = {}, {}
    operator.settle()
    assert world.made == ["claims-triage-a1"]
    assert world.status["phase"] == {"Completed": "Succeeded"}.get(outcome, outcome)
    assert world.status["privacy"]["stepsCharged"] == 5


def test_a_lost_ledger_leaves_what_was_known_of_the_spending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a newer release would calibrate the noise otherwise."""
    world, operator = running_job()
    before = world.status["privacy"]
    world.ledger = None
    monkeypatch.setattr("tensafe_operator.plan.ledger.fold_ledger", lambda *_: pytest.fail("nothing is folded"))
    operator.settle()
    assert (world.status["phase"], world.status["privacy"]) == ("Failed", before)


def test_a_ledger_of_another_job_is_nobodys_to_spend_on() -> None:
    world = FakeCluster.with_job()
    operator = FakeOperator(world)
    with pytest.raises(Killed):
        operator.reconcile(dies_after=2)
    assert world.ledger is not None
    world.ledger["spec"]["jobUID"] = "another"
    operator.settle()
    assert (world.status.get("ledgerUID"), world.made) == (None, [])
    assert condition(world, "Stalled")["reason"] == "NameTaken"


@pytest.mark.parametrize("label", ["abc", "2147483647", "-1", ""])
def test_a_strangers_label_blinds_nobody(label: str) -> None:
    world, operator = started_job()
    labels = {names.JOB_UID: JOB_UID, names.ATTEMPT: label}
    world.pods["stranger"] = {"metadata": {"name": "stranger", "labels": labels}}
    world.delete_ray_job("claims-triage-a1", world.ray_jobs["claims-triage-a1"]["metadata"]["uid"])
    operator.settle()
    world.now += 60
    operator.settle()
    assert list(world.ray_jobs) == ["claims-triage-a2"]


def test_the_last_attempt_that_a_ledger_can_record_is_the_last() -> None:
    world, operator = running_job()
    assert world.ledger is not None
    world.ledger["status"]["attempt"] = 64
    world.end_ray_job("FAILED")
    world.remove_going_pods()
    operator.settle()
    world.now += 60
    operator.settle()
    assert (world.status["phase"], condition(world, "Failed")["reason"]) == ("Failed", "AttemptsExhausted")


@pytest.mark.parametrize("place", ["dataset", "checkpoint"])
def test_what_is_relative_to_a_manifest_is_for_local_runs(place: str) -> None:
    world = FakeCluster.with_job(**{f"spec__{place}__uri": "claims/here"})
    FakeOperator(world).settle()
    assert condition(world, "Accepted")["status"] == "False"
    assert f"spec.{place}.uri: claims/here" in condition(world, "Stalled")["message"]


def test_an_edit_of_a_finished_job_is_seen_though_nothing_is_done_for_it() -> None:
    world, operator = running_job()
    world.outcome("Completed")
    world.end_ray_job("SUCCEEDED")
    operator.settle()
    world.job["metadata"]["generation"] = 7
    operator.settle()
    assert (world.status["phase"], world.status["observedGeneration"]) == ("Succeeded", 7)


@pytest.mark.parametrize("how", ["gone", "made anew"])
def test_a_lost_ledger_ends_the_job(how: str) -> None:
    world, operator = running_job()
    spent = world.status["privacy"]["epsilonSpent"]
    ledger, world.ledger = world.ledger, None
    if how == "made anew":
        assert ledger is not None
        ledger.pop("status")
        world.create(ledger)
    operator.settle()
    assert world.status["phase"] == "Failed"
    assert condition(world, "Failed")["reason"] == "LedgerLost"
    assert world.ray_jobs == {}
    assert world.status["privacy"]["epsilonSpent"] == spent


def test_a_ledger_that_another_release_has_made_is_not_lost() -> None:
    world, operator = running_job()
    before = (world.status["privacy"], set(world.ray_jobs))
    assert world.ledger is not None
    world.ledger["spec"]["madeByANewerRelease"] = True
    operator.settle()
    assert (world.status["privacy"], set(world.ray_jobs)) == before
    assert (world.status["phase"], condition(world, "Stalled")["status"]) == ("Running", "True")
    assert "run the release of the operator that made it" in condition(world, "Stalled")["message"]


def test_of_a_record_that_cannot_be_read_the_charges_are_counted() -> None:
    world, operator = running_job()
    world.charge(5)
    assert world.ledger is not None
    world.ledger["status"] |= {"head": "\x0b", "releases": "what a newer release writes"}
    operator.settle()
    assert world.status["privacy"]["stepsCharged"] == 10


def test_a_ledger_that_somebody_made_beforehand_with_other_figures_is_not_the_jobs() -> None:
    world = FakeCluster.with_job()
    operator = FakeOperator(world)
    with pytest.raises(Killed):
        operator.reconcile(dies_after=2)
    assert world.ledger is not None
    world.ledger["spec"]["mechanism"]["sampleRate"] = "0.0000001"
    operator.settle()
    assert (world.status.get("ledgerUID"), world.made) == (None, [])
    assert condition(world, "Stalled")["reason"] == "NameTaken"


def test_a_status_that_was_cleared_while_an_attempt_starts_begins_none_beside_it() -> None:
    world, operator = started_job()
    world.job["status"] = {}
    for _ in range(3):
        operator.settle()
        assert len(world.live()) <= 1
    assert list(world.ray_jobs) == ["claims-triage-a2"]


def test_the_number_of_an_attempt_is_in_its_name_and_not_in_a_label() -> None:
    world, operator = running_job()
    world.ray_jobs["claims-triage-a1"]["metadata"]["labels"][names.ATTEMPT] = "64"
    world.end_ray_job("FAILED")
    operator.settle()
    world.pods = {}
    world.now += 60
    operator.settle()
    assert [each["number"] for each in world.status["attempts"]] == [1, 2]


@pytest.mark.parametrize(
    ("uri", "volumes", "taken"),
    [
        ("/ckpt", [], False),
        ("file:///ckpt/adapter", [], False),
        ("/ckpt", [{"name": "c", "mountPath": "/ckpt", "emptyDir": "1Gi"}], False),
        ("/ckpt", [{"name": "c", "mountPath": "/ckpt", "pvc": "models", "readOnly": True}], False),
        ("/ckpt/adapter", [{"name": "c", "mountPath": "/ckpt", "pvc": "models"}], True),
        ("pvc://models/adapter", [], True),
        ("s3://models/adapter", [], True),
    ],
)
def test_a_checkpoint_must_outlive_its_pod(uri: str, volumes: list[dict[str, Any]], taken: bool) -> None:
    world = FakeCluster.with_job(spec__checkpoint__uri=uri, spec__cluster__volumes=volumes)
    FakeOperator(world).settle()
    assert (condition(world, "Accepted")["status"] == "True") is taken
    assert taken or "would be lost with its pod" in condition(world, "Stalled")["message"]


def test_without_kuberay_it_waits_and_then_goes_on() -> None:
    world = FakeCluster.with_job()
    world.kuberay = False
    operator = FakeOperator(world)
    operator.settle()
    assert condition(world, "Stalled")["reason"] == "KubeRayMissing"
    world.kuberay = True
    operator.settle()
    assert world.made == ["claims-triage-a1"]


@pytest.mark.parametrize("claimed", [False, True])
def test_who_charges_nothing_for_too_long_is_tried_again(claimed: bool) -> None:
    world, operator = started_job()
    world.start_pods()
    if claimed:
        world.claim()
    operator.settle()
    assert operator.wake == world.now + SETTINGS.stall_seconds
    world.now += SETTINGS.stall_seconds
    operator.settle()
    assert world.status["attempts"][0]["reason"] == "WorkerLost"
    assert condition(world, "Failed")["status"] == "False"


def test_the_deadline_is_of_all_attempts_together() -> None:
    world, operator = running_job(spec__activeDeadlineSeconds=900)
    world.now += 901
    operator.settle()
    assert world.status["phase"] == "Failed"
    assert condition(world, "Failed")["reason"] == "DeadlineExceeded"
    assert world.ray_jobs == {}


def test_the_ray_job_of_a_failed_attempt_stays_for_its_logs() -> None:
    world, operator = running_job(spec__childrenTTLSeconds=0)
    world.end_ray_job("FAILED", "exit code 71")
    operator.settle()
    assert operator.wake == world.now + KEPT_SECONDS
    assert world.ray_jobs
    world.now += KEPT_SECONDS
    operator.settle()
    assert world.ray_jobs == {}


def test_what_only_arithmetic_can_refuse_is_not_accepted() -> None:
    changes = {"spec__dataset__unit__atLeast": 10**7, "spec__training": {"steps": 10, "expectedBatchSize": 200_000}}
    world, _ = started_job(**changes)
    assert world.status["phase"] == "Pending"
    assert condition(world, "Accepted")["status"] == "False"
    assert "overflows the integer grid" in condition(world, "Accepted")["message"]
    assert world.ledger is None
