"""A job that its author suspends, and lets go on."""

from __future__ import annotations

from e2e.platform.fixtures.fake_cluster import condition, running_job, started_job
from tensafe_operator.plan.suspension import SUSPEND_SECONDS


def test_a_suspended_job_shows_its_plan_and_begins_nothing() -> None:
    world, operator = started_job(spec__suspend=True)
    assert world.status["phase"] == "Suspended"
    assert float(world.status["privacy"]["noiseMultiplier"]) > 0
    assert world.ledger is None and not world.made
    world.suspend(False)
    operator.settle()
    assert world.made == ["claims-triage-a1"]


def test_suspending_waits_for_the_checkpoint_and_resuming_is_the_next_attempt() -> None:
    world, operator = running_job()
    world.suspend(True)
    operator.settle()
    assert condition(world, "Running")["reason"] == "Suspending"
    world.outcome("Suspended")
    world.end_ray_job("SUCCEEDED")
    operator.settle()
    assert world.status["phase"] == "Suspended"
    world.remove_going_pods()
    world.suspend(False)
    operator.settle()
    assert world.made == ["claims-triage-a1", "claims-triage-a2"]


def test_who_does_not_stop_is_stopped() -> None:
    world, operator = running_job()
    world.suspend(True)
    operator.settle()
    assert operator.wake == world.now + SUSPEND_SECONDS
    world.now += SUSPEND_SECONDS
    operator.settle()
    assert world.ray_jobs == {}
    assert world.status["phase"] == "Suspended"
    assert world.status["attempts"][0]["reason"] == "Interrupted"


def test_suspending_what_has_not_begun_is_done_at_once_and_no_failure() -> None:
    world, operator = started_job(**{"spec.retry": {"maxAttempts": 1}})
    for number in (1, 2, 3):
        assert list(world.ray_jobs) == [f"claims-triage-a{number}"]
        world.start_pods()
        world.suspend(True)
        operator.settle()
        assert (world.ray_jobs, world.status["phase"]) == ({}, "Suspended")
        world.remove_going_pods()
        world.suspend(False)
        operator.settle()
    assert {each.get("reason") for each in world.status["attempts"][:-1]} == {"Interrupted"}
    assert condition(world, "Failed")["status"] == "False"


def test_a_suspension_that_was_taken_back_too_late_is_no_failure_either() -> None:
    world, operator = started_job()
    world.suspend(True)
    operator.reconcile(world.observed())
    operator.reconcile(world.observed())
    assert world.ray_jobs == {}
    world.suspend(False)
    operator.settle()
    assert world.status["attempts"][0]["reason"] == "Interrupted"
    assert list(world.ray_jobs) == ["claims-triage-a2"]
