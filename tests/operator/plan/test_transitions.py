"""People are told once of what happened, and warned where somebody should act."""

from __future__ import annotations

from typing import Any

from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator
from tensafe_api.reasons import EventReason, Phase, Reason
from tensafe_api.resources.status import Status
from tensafe_operator.plan.transitions import Transition, transitions_between

DOCUMENTED = {word.value for kind in (EventReason, Phase, Reason) for word in kind}


def status(world: FakeCluster) -> Status:
    return Status.model_validate(world.status, by_alias=True, by_name=False)


class Listener:
    """What is told while a world goes on."""

    def __init__(self, world: FakeCluster) -> None:
        self.world, self.operator, self.last = world, FakeOperator(world), Status()

    def settle(self) -> list[Transition]:
        told: list[Transition] = []
        for _ in range(12):
            self.world.remember()
            self.operator.reconcile()
            now = status(self.world)
            told += transitions_between(self.last, now)
            assert {each.reason for each in told} <= DOCUMENTED
            self.last = now
        return told


def words(told: list[Transition]) -> list[str]:
    return [each.reason for each in told]


def test_a_job_that_goes_well_is_told_in_a_few_words() -> None:
    world = FakeCluster.with_job()
    told = Listener(world)
    assert words(told.settle()) == ["AttemptStarted"]
    world.start_pods()
    world.claim()
    world.charge(10)
    assert words(told.settle()) == ["Running"]
    world.charge(5)
    assert told.settle() == [], "progress is in the status"
    world.outcome("Completed")
    world.end_ray_job("SUCCEEDED")
    done = told.settle()
    assert words(done) == ["ModelReleased", "Succeeded"]
    assert "s3://m/final" in done[0].message
    assert not any(each.warning for each in done)


def test_a_failed_attempt_is_a_warning_and_the_next_one_is_told() -> None:
    world = FakeCluster.with_job()
    told = Listener(world)
    told.settle()
    world.start_pods()
    world.end_ray_job("FAILED", "Job failed: driver exited with exit code 69")
    first = told.settle()
    assert words(first) == ["ResourcesMissing"]
    assert first[0].warning
    assert first[0].message.startswith("attempt 1: ")
    world.remove_going_pods()
    world.now += 60
    assert "AttemptStarted" in words(told.settle())


def test_what_stalls_a_job_is_told_once_and_again_when_it_is_another_thing() -> None:
    def stalled(reason: str, holds: str = "True") -> Status:
        condition: dict[str, Any] = {"type": "Stalled", "status": holds, "reason": reason, "message": "why"}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        document = {"phase": "Starting", "conditions": [condition]}
        return Status.model_validate(document, by_alias=True, by_name=False)

    assert words(list(transitions_between(stalled("Starting", "False"), stalled("Unschedulable")))) == ["Unschedulable"]
    assert transitions_between(stalled("Unschedulable"), stalled("Unschedulable")) == ()
    assert words(list(transitions_between(stalled("Unschedulable"), stalled("SecretMissing")))) == ["SecretMissing"]
    assert transitions_between(stalled("SecretMissing"), stalled("Starting", "False")) == ()
