"""Thousands of random histories: whatever is seen, in whatever order, and whenever the operator dies.

A cache that shows any earlier moment, kills after any prefix of the actions, pods that linger, people who suspend,
delete and forge: after each step of each history the invariants are looked at, and in the end everything that was
started comes to the same end. `TENSAFE_HISTORIES=5000` tries more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster, FakeOperator, Killed
from tensafe_api.resolve import Plan
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import PrivacyStatus, Status
from tensafe_operator.plan import decide
from tensafe_operator.plan.predecessors import Predecessors
from tensafe_operator.plan.privacy_status import fold_ledger

HISTORIES = int(os.environ.get("TENSAFE_HISTORIES", "150"))
STEPS = 45


class Watch:
    """The invariants, looked at after each step."""

    def __init__(self, world: FakeCluster) -> None:
        self.world = world
        self.epsilon = 0.0
        self.final: dict[str, Any] | None = None
        self.made = 0

    def look(self) -> None:
        status = self.world.status
        self._one_attempt_at_most(status)
        epsilon = float((status.get("privacy") or {}).get("epsilonSpent") or 0.0)
        assert epsilon >= self.epsilon, "ε fell"
        self.epsilon = epsilon
        if self.final is not None:
            assert status == self.final, "a final status changed"
            assert len(self.world.made) == self.made, "a job that was over was run again"
        elif status.get("phase") in ("Succeeded", "BudgetExhausted", "Failed"):
            self.final, self.made = status, len(self.world.made)
        assert not self.world.beside, "an attempt was made while pods were left"
        if self.world.made:
            assert status.get("ledgerUID"), "a RayJob was made before the ledger's UID was stored"

    def _one_attempt_at_most(self, status: dict[str, Any]) -> None:
        assert len(self.world.live()) <= 1, "two RayJobs live at once"
        open_ones = [each for each in status.get("attempts", ()) if "endTime" not in each]
        assert len(open_ones) <= 1
        numbers = [each["number"] for each in status.get("attempts", ())]
        assert numbers == sorted(set(numbers))


def someone(random_: random.Random, world: FakeCluster) -> Callable[[], object]:
    """Anything that anybody but the operator may do next."""
    return random_.choice(
        [
            world.start_pods,
            world.start_pods,
            world.remove_going_pods,
            world.remove_going_pods,
            world.claim,
            world.claim,
            lambda: world.charge(random_.randint(1, 3)),
            lambda: world.charge(random_.randint(1, 3)),
            lambda: world.outcome(random_.choice(["Completed", "Suspended", "BudgetExhausted"])),
            lambda: world.end_ray_job(random_.choice(["SUCCEEDED", "SUCCEEDED", "FAILED", "STOPPED"])),
            lambda: world.suspend(random_.random() < 0.3),
            lambda: advance(world, random_.choice([1, 15, 130, 700])),
            lambda: delete_first(world),
            lambda: setattr(world, "kuberay", random_.random() < 0.9),
        ]
    )


def delete_first(world: FakeCluster) -> None:
    for name, ray_job in list(world.ray_jobs.items())[:1]:
        world.delete_ray_job(name, ray_job["metadata"]["uid"])


def advance(world: FakeCluster, seconds: float) -> None:
    world.now += seconds


def live_through(seed: int) -> None:
    """One history. Raises AssertionError where an invariant breaks."""
    random_ = random.Random(seed)
    world = FakeCluster.with_job(spec__retry={"maxAttempts": 4})
    operator, watch = FakeOperator(world), Watch(world)
    for _ in range(STEPS):
        if random_.random() < 0.5:
            someone(random_, world)()
        if random_.random() < 0.7:
            world.remember()
        try:
            others = someone(random_, world) if random_.random() < 0.4 else world.remember
            operator.reconcile(world.blurred(random_), random_.choice([None, None, None, 0, 1, 3, 6, 7, 9]), others)
        except Killed:
            operator = FakeOperator(world)
        try:
            watch.look()
        except AssertionError as broken:
            raise AssertionError(f"history {seed}: {broken}") from broken


@pytest.mark.parametrize("block", range(10))
def test_whatever_happens(block: int) -> None:
    for seed in range(block * HISTORIES // 10, (block + 1) * HISTORIES // 10):
        live_through(seed)


@pytest.mark.parametrize("block", range(4))
def test_a_pass_leaves_nothing_to_do_unless_it_says_when(block: int) -> None:
    """The events that tell of our own writes start no pass, so none may be needed."""
    for seed in range(block * 25, (block + 1) * 25):
        random_ = random.Random(seed)
        world = FakeCluster.with_job(spec__retry={"maxAttempts": 4})
        operator = FakeOperator(world)
        for _ in range(STEPS):
            someone(random_, world)()
            there = set(world.ray_jobs)
            operator.reconcile(world.observed())
            if there - set(world.ray_jobs):
                continue  # that they have gone is news, and starts a pass
            again = decide(world.observed(), world.now, SETTINGS)
            told = again.status.model_dump(by_alias=True, mode="json", exclude_none=True)
            at_once = operator.wake is not None and operator.wake <= world.now
            assert at_once or (told, again.actions) == (world.status, ()), f"history {seed}"


def never(*_: object) -> bool:
    return False


def of_the_ledger_alone(status: Status, plan: Plan, ledger: LedgerStatus | None) -> Status:
    return fold_ledger(status.model_copy(update={"privacy": PrivacyStatus()}), plan, ledger)


@pytest.mark.parametrize(
    ("name", "broken", "says"),
    [
        ("tensafe_operator.plan.starting.find_predecessors", lambda *_: Predecessors(alive=False), "pods were left"),
        ("tensafe_operator.plan.Decision.irreversible", False, "run again|two RayJobs|pods were left|fell"),
        ("tensafe_operator.plan.ledger.fold_ledger", of_the_ledger_alone, "ε fell"),
        ("tensafe_operator.plan.is_final", never, "over|final"),
    ],
    ids=["pods are not waited for", "caches are believed", "a late ledger is believed", "an end is no end"],
)
def test_a_broken_operator_is_noticed(name: str, broken: object, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith("Decision.irreversible"):
        monkeypatch.setattr(FakeCluster, "observed_again", lambda world, seen: seen)
    else:
        monkeypatch.setattr(name, broken)
    with pytest.raises(AssertionError, match=says):
        for seed in range(400):
            live_through(seed)


@pytest.mark.parametrize("seed", range(20))
def test_every_order_comes_to_the_same_end(seed: int) -> None:
    """Left alone, with everybody doing their part, a job that was disturbed at random succeeds, and is charged once."""
    random_ = random.Random(seed)
    world = FakeCluster.with_job()
    operator = FakeOperator(world)
    while world.status.get("phase") != "Succeeded":
        for _ in range(random_.randint(0, 3)):
            try:
                operator.reconcile(dies_after=random_.choice([None, 0, 2, 5]))
            except Killed:
                operator = FakeOperator(world)
            world.remember()
        operator.settle()
        world.start_pods()
        if world.ledger is not None and world.pods and "status" not in world.ledger:
            world.claim()
            world.charge(20)
            world.outcome("Completed")
        if (world.ledger or {}).get("status", {}).get("outcome") == "Completed":
            world.end_ray_job("SUCCEEDED")
        world.now += 1
        world.remember()
        assert world.now < 1_800_001_000
    assert world.made == ["claims-triage-a1"]
    assert world.status["privacy"]["stepsCharged"] == 20
