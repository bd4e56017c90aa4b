"""The invariants of `plan` over thousands of random histories.

In a history the cache shows earlier moments, the operator is killed after any action, pods linger, and users suspend
jobs and delete objects. The invariants are checked after each step. A job that is then left alone always comes to the
same end. `TENSAFE_HISTORIES=5000` runs more histories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tensafe_operator.decision import decide
from tensafe_operator.decision.predecessors import Predecessors
from tests.support.fake_cluster import SETTINGS, FakeCluster, FakeOperator, Killed, own_actions

HISTORIES = int(os.environ.get("TENSAFE_HISTORIES", "150"))
STEPS = 45
PROFILE = {"metadata": {"name": "gpu-a"}, "spec": {"image": "site:1", "rayVersion": "2.60.0", "queueName": "team"}}


def blocks(count: int, quick: int) -> list[Any]:
    """Parameters for blocks of histories: `make test` runs the first `quick` blocks, and `make test-all` the others."""
    return [pytest.param(block, marks=[] if block < quick else pytest.mark.slow) for block in range(count)]


class Invariants:
    """The invariants of one history."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.epsilon = 0.0
        self.final: dict[str, Any] | None = None
        self.created = 0

    def check(self) -> None:
        status = self.cluster.status
        self._one_attempt_at_most(status)
        epsilon = float((status.get("privacy") or {}).get("epsilonSpent") or 0.0)
        assert epsilon >= self.epsilon, "ε fell"
        self.epsilon = epsilon
        # What a later decision adds: that the key was deleted, and what the last pods have charged and written.
        for field in ("keyDeleted", "privacy", "progress", "checkpoints", "finalModel", "resolved"):
            status.pop(field, None)
        if self.final is not None:
            assert status == self.final, "a final status changed"
            assert len(self.cluster.created) == self.created, "a job that had ended was run again"
        elif status.get("phase") in ("Succeeded", "BudgetExhausted", "Failed"):
            self.final, self.created = status, len(self.cluster.created)
        assert not self.cluster.overlapping, "an attempt started while pods were left"
        assert not self.cluster.keyless, "an attempt started after the key was deleted"
        assert not self.cluster.conflicts, "the ConfigMap of an attempt has the name of another one"
        if self.cluster.created:
            assert status.get("ledgerUID"), "a RayJob was created before the ledger's UID was stored"

    def _one_attempt_at_most(self, status: dict[str, Any]) -> None:
        assert len(self.cluster.live_ray_jobs()) <= 1, "two RayJobs live at once"
        open_ones = [each for each in status.get("attempts", ()) if "endTime" not in each]
        assert len(open_ones) <= 1
        numbers = [each["number"] for each in status.get("attempts", ())]
        assert numbers == sorted(set(numbers))


def random_event(random_: random.Random, cluster: FakeCluster) -> Callable[[], object]:
    """Return one thing that a component other than the operator, or a user, may do next."""
    return random_.choice(
        [
            cluster.start_pods,
            cluster.start_pods,
            cluster.remove_terminating_pods,
            cluster.remove_terminating_pods,
            cluster.acquire_ledger,
            cluster.acquire_ledger,
            lambda: cluster.charge(random_.randint(1, 3)),
            lambda: cluster.charge(random_.randint(1, 3)),
            lambda: cluster.record_outcome(random_.choice(["Completed", "Suspended", "BudgetExhausted"])),
            lambda: cluster.end_ray_job(random_.choice(["SUCCEEDED", "SUCCEEDED", "FAILED", "STOPPED"])),
            lambda: cluster.suspend(random_.random() < 0.3),
            lambda: advance(cluster, random_.choice([1, 15, 130, 700])),
            lambda: delete_first(cluster),
            cluster.evict,
            cluster.readmit,
            lambda: setattr(cluster, "kuberay", random_.random() < 0.9),
            *([lambda: change_profile(random_, cluster)] if names_profile(cluster) else []),
        ]
    )


def names_profile(cluster: FakeCluster) -> bool:
    return "profileRef" in cluster.job["spec"]["cluster"]


def change_profile(random_: random.Random, cluster: FakeCluster) -> None:
    """An administrator deletes, breaks or corrects the profile."""
    cluster.profile = random_.choice([None, {**PROFILE, "spec": {"image": "x:1"}}, PROFILE, PROFILE])


def delete_first(cluster: FakeCluster) -> None:
    for name, ray_job in list(cluster.ray_jobs.items())[:1]:
        cluster.delete_ray_job(name, ray_job["metadata"]["uid"])


def advance(cluster: FakeCluster, seconds: float) -> None:
    cluster.now += seconds


def run_history(seed: int, **changes: Any) -> FakeCluster:
    """Run one history of a job with these changes. Raises AssertionError where an invariant breaks."""
    random_ = random.Random(seed)
    cluster = FakeCluster.with_job(spec__retry={"maxAttempts": 4}, **changes)
    operator, invariants = FakeOperator(cluster), Invariants(cluster)
    for _ in range(STEPS):
        if random_.random() < 0.5:
            random_event(random_, cluster)()
        if random_.random() < 0.7:
            cluster.take_snapshot()
        try:
            operator.reconcile(cluster.observe_stale(random_), random_.choice([None, None, None, 0, 1, 3, 6, 7, 9]))
        except Killed:
            operator = FakeOperator(cluster)
        try:
            invariants.check()
        except AssertionError as broken:
            raise AssertionError(f"history {seed}: {broken}") from broken
    return cluster


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(10, quick=4))
def test_invariants_hold_in_random_histories(block: int) -> None:
    for seed in range(block * HISTORIES // 10, (block + 1) * HISTORIES // 10):
        run_history(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(4, quick=1))
def test_invariants_hold_while_a_profile_comes_and_goes(block: int) -> None:
    started = 0
    for seed in range(block * HISTORIES // 4, (block + 1) * HISTORIES // 4):
        cluster = run_history(seed, spec__cluster__profileRef="gpu-a")
        started += len(cluster.created)
        assert all(image_of(each) == "site:1" for each in cluster.ray_jobs.values())
    assert started, "no history has an attempt"


def image_of(ray_job: dict[str, Any]) -> str:
    pod = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    return str(pod["containers"][0]["image"])


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(4, quick=1))
def test_reconcile_leaves_no_work_undone_unless_it_wakes_at_once(block: int) -> None:
    """Watch events about the operator's own writes start no reconcile, so none may be needed."""
    for seed in range(block * 25, (block + 1) * 25):
        random_ = random.Random(seed)
        cluster = FakeCluster.with_job(spec__retry={"maxAttempts": 4})
        operator = FakeOperator(cluster)
        for _ in range(STEPS):
            random_event(random_, cluster)()
            there = set(cluster.ray_jobs)
            operator.reconcile(cluster.observe())
            if there - set(cluster.ray_jobs):
                continue  # a deletion causes a watch event, which starts a reconcile
            again = decide(cluster.observe(), cluster.now, SETTINGS)
            status = again.status.model_dump(by_alias=True, mode="json", exclude_none=True)
            at_once = operator.wake is not None and operator.wake <= cluster.now
            assert at_once or (status, own_actions(again)) == (cluster.status, []), f"history {seed}"


def never(*_: object) -> bool:
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        (
            "tensafe_operator.decision.starting.find_predecessors",
            lambda *_: Predecessors(alive=False),
            "pods were left",
        ),
        ("tensafe_operator.decision.is_final", never, "had ended|final"),
    ],
    ids=["does-not-wait-for-pods", "continues-after-the-end"],
)
def test_broken_operator_violates_an_invariant(
    name: str, broken: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name, broken)
    with pytest.raises(AssertionError, match=message):
        for seed in range(400):
            run_history(seed)


@pytest.mark.parametrize("seed", range(20))
def test_every_order_comes_to_the_same_end(seed: int) -> None:
    """A job whose operator is killed at random, and is then left alone, succeeds and is charged once."""
    random_ = random.Random(seed)
    cluster = FakeCluster.with_job()
    operator = FakeOperator(cluster)
    while cluster.status.get("phase") != "Succeeded":
        for _ in range(random_.randint(0, 3)):
            try:
                operator.reconcile(dies_after=random_.choice([None, 0, 2, 5]))
            except Killed:
                operator = FakeOperator(cluster)
            cluster.take_snapshot()
        operator.settle()
        cluster.start_pods()
        if cluster.ledger is not None and cluster.pods and "status" not in cluster.ledger:
            cluster.acquire_ledger()
            cluster.charge(20)
            cluster.record_outcome("Completed")
        if (cluster.ledger or {}).get("status", {}).get("outcome") == "Completed":
            cluster.end_ray_job("SUCCEEDED")
        cluster.now += 1
        cluster.take_snapshot()
        assert cluster.now < 1_800_001_000
    assert cluster.created == ["claims-triage-a1"]
    assert cluster.status["privacy"]["stepsCharged"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(4, quick=1))
def test_invariants_hold_on_the_cache_alone(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names follow from job and attempt, the status is written under its version, and the ledger fences: so an attempt
    is never doubled, also where the API server is not read again before a decision.
    """
    monkeypatch.setattr(FakeCluster, "observe_again", lambda cluster, seen: seen)
    for seed in range(block * HISTORIES // 4, (block + 1) * HISTORIES // 4):
        run_history(seed)
