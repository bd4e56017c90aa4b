"""Accounting with PLD takes seconds for each ε. It must not block the Lease, the health check or other jobs."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster
from tensafe_api import accounting
from tensafe_api.calibration import calibrate
from tensafe_api.long_computations import LongComputationError, long_computation, only_short_computations
from tensafe_api.privacy_events import PrivacyEvent
from tensafe_api.resources.status import Status
from tensafe_operator import reconcile
from tensafe_operator.kinds import KINDS
from tensafe_operator.plan import decide
from tensafe_operator.plan.observed import Decision
from tensafe_operator.runtime.work_queue import TakesLong


class AcceptingApi:
    """Accepts every write."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []

    async def replace_status(
        self, job: dict[str, Any], status: dict[str, Any], *, without_managers: bool
    ) -> dict[str, Any]:
        self.statuses.append(status)
        return {**job, "status": status}

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest


async def guarded(*, within: float | None = None) -> bool:
    return True


@pytest.mark.parametrize("accountant", ["PLD", "RDP"])
def test_only_a_patient_call_computes_long_and_does_it_in_a_thread(
    accountant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []

    def record_thread(*arguments: Any) -> Decision:
        threads.append(threading.current_thread() is not threading.main_thread())
        return decide(*arguments)

    monkeypatch.setattr(reconcile, "decide", record_thread)
    changes = {"metadata__resourceVersion": "1", "spec__suspend": True}
    target = {"PLD": "7.123", "RDP": "7.124"}[accountant]  # which no other test has put into the cache
    cluster = FakeCluster.with_job(spec__privacy__accountant=accountant, spec__privacy__targetEpsilon=target, **changes)
    api = AcceptingApi()
    reconciler: Any = reconcile.Reconciler(api, SETTINGS, guarded=guarded)  # type: ignore[arg-type]

    def run(*, patient: bool) -> None:
        asyncio.run(reconciler.reconcile("clinic", "claims-triage", cluster.observe(), patient=patient))

    with pytest.raises(TakesLong):
        run(patient=False)
    assert api.statuses == [], "a long computation is no failure of the job"
    assert asyncio.run(reconciler.compute(cluster.observe())), "something was missing"
    assert api.statuses == []
    run(patient=False)
    run(patient=True)
    assert threads == [False, False, True, False, True]
    assert not asyncio.run(reconciler.compute(cluster.observe())), "everything is cached"
    assert threads[5:] == [False]
    assert api.statuses[0]["privacy"] == api.statuses[1]["privacy"]


@functools.cache
@long_computation
def figure(number: int) -> int:
    return number


def needing(numbers: range) -> Callable[..., Decision]:
    """A decision that needs these figures."""

    def needs(*arguments: Any) -> Decision:
        for number in numbers:
            figure(number)
        return decide(*arguments)

    return needs


def test_turn_of_a_job_is_limited_and_the_next_one_gets_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with many new figures leaves the threads to others in between."""
    changes = {"metadata__resourceVersion": "1", "spec__suspend": True}
    cluster = FakeCluster.with_job(**changes)
    reconciler: Any = reconcile.Reconciler(AcceptingApi(), SETTINGS, guarded=guarded)  # type: ignore[arg-type]
    asyncio.run(reconciler.compute(cluster.observe()))  # its own figures
    monkeypatch.setattr(reconcile, "COMPUTING_SECONDS", 0.0)
    monkeypatch.setattr(reconcile, "decide", needing(range(3 * reconcile.FIGURES)))
    figure.cache_clear()
    for turn in (1, 2):
        with pytest.raises(TakesLong):
            asyncio.run(reconciler.compute(cluster.observe()))
        assert figure.cache_info().currsize == turn * reconcile.FIGURES
    asyncio.run(reconciler.reconcile("clinic", "claims-triage", cluster.observe(), patient=True))
    assert figure.cache_info().currsize == 3 * reconcile.FIGURES
    asyncio.run(reconciler.reconcile("clinic", "claims-triage", cluster.observe(), patient=False))


def test_job_with_many_pods_computes_nothing_long_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "decide", needing(range(100, 101)))
    observed = FakeCluster.with_job().observe()
    pods = tuple({"kind": "Pod", "metadata": {"name": f"p{number}"}} for number in range(KINDS.kept["Pod"] + 1))
    reconciler: Any = reconcile.Reconciler(AcceptingApi(), SETTINGS, guarded=guarded)  # type: ignore[arg-type]
    with pytest.raises(TakesLong):
        asyncio.run(reconciler.reconcile("clinic", "claims-triage", replace(observed, pods=pods), patient=False))


def test_failed_reconcile_counts_charges_in_the_turn_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the jobs of one namespace that fail would take the time of the others."""

    def fail(*arguments: Any) -> Decision:
        raise RuntimeError("a bug")

    def count(status: Status, ledger: object) -> Status:
        figure(200)
        return status

    monkeypatch.setattr(reconcile, "decide", fail)
    monkeypatch.setattr(reconcile, "count_after_failure", count)
    figure.cache_clear()
    api = AcceptingApi()
    reconciler: Any = reconcile.Reconciler(api, SETTINGS, guarded=guarded)  # type: ignore[arg-type]
    observed = FakeCluster.with_job(metadata__resourceVersion="1").observe()
    with pytest.raises(TakesLong):
        asyncio.run(reconciler.reconcile("clinic", "claims-triage", observed, patient=False))
    assert api.statuses == []
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(reconciler.reconcile("clinic", "claims-triage", observed, patient=True))
    assert len(api.statuses) == 1


@pytest.mark.parametrize("accountant", ["PLD", "RDP"])
def test_each_figure_that_takes_long_is_refused_where_only_short_ones_are_allowed(
    accountant: accounting.AccountantName,
) -> None:
    rate = {"PLD": 0.0123, "RDP": 0.0124}[accountant]
    claim: dict[str, Any] = {"sample_rate": rate, "steps": 77, "delta": 1e-6, "accountant": accountant}
    calls: list[Callable[[], object]] = [
        lambda: calibrate(target_epsilon=4.5, **claim),
        lambda: str(accounting.epsilon(noise_multiplier=1.2345, **claim)),
    ]
    for call in calls:
        with only_short_computations(), pytest.raises(LongComputationError):
            call()
        computed = call()
        with only_short_computations():
            assert call() == computed, "it is cached"


@pytest.mark.parametrize(
    ("status", "group"),
    [
        (None, "new"),
        ({"phase": "Pending"}, "new"),
        ({"phase": "Pending", "ledgerUID": "u"}, "begun"),
        ({"phase": "Running", "ledgerUID": "u"}, "begun"),
        ({"phase": "Succeeded", "ledgerUID": "u"}, "ended"),
        ({"phase": "Failed"}, "ended"),
    ],
)
def test_new_jobs_and_those_that_have_begun_or_ended_take_turns(
    status: dict[str, Any] | None, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Decision:
        raise LongComputationError("an ε")

    monkeypatch.setattr(reconcile, "decide", refuse)
    observed = FakeCluster.with_job().observe()
    observed = replace(observed, job={**observed.job, "status": status} if status else observed.job)
    reconciler: Any = reconcile.Reconciler(AcceptingApi(), SETTINGS, guarded=guarded)  # type: ignore[arg-type]
    with pytest.raises(TakesLong) as refused:
        asyncio.run(reconciler.reconcile("clinic", "claims-triage", observed, patient=False))
    assert refused.value.group == group


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[float, int]]]:
    """How often the ε of a mechanism and a number of steps was computed."""
    count: Counter[tuple[float, int]] = Counter()

    def epsilon(rate: float, sigma: float, delta: float, accountant: str, earlier: object, steps: int) -> float:
        count[sigma, steps] += 1
        return steps / sigma

    monkeypatch.setattr(accounting, "epsilon_once", epsilon)
    for cache in (accounting._digest, accounting._kept_epsilon):
        cache.cache_clear()
    yield count
    for cache in (accounting._digest, accounting._kept_epsilon):
        cache.cache_clear()


def epsilon_of(sigma: float, steps: int) -> float:
    return accounting.epsilon(sample_rate=0.01, noise_multiplier=sigma, steps=steps, delta=1e-5, accountant="PLD")


@pytest.mark.parametrize("sigmas", [2000, 1])
def test_each_epsilon_of_many_jobs_with_all_checkpoints_is_computed_once(
    sigmas: int, asked: Counter[tuple[float, int]]
) -> None:
    """The operator folds the ledgers of all jobs every few minutes, also of those that have ended. Jobs with the same
    noise have other numbers of steps at their checkpoints.
    """
    jobs = [(1 + number % sigmas / 1024, number) for number in range(2000)]
    for _ in range(2):
        for sigma, number in jobs:
            for checkpoint in range(128):
                steps = 2000 * checkpoint + number
                assert epsilon_of(sigma, steps) == steps / sigma
    assert set(asked.values()) == {1} and len(asked) == 2000 * 128


def test_job_that_charges_many_steps_displaces_no_figure_of_another(asked: Counter[tuple[float, int]]) -> None:
    epsilon_of(1.5, 10)
    for steps in range(100_000):
        epsilon_of(2.5, steps)
    epsilon_of(1.5, 10)
    assert asked[1.5, 10] == 1


def test_many_other_mechanisms_displace_no_figure(asked: Counter[tuple[float, int]]) -> None:
    """A job whose turn ends continues with the figures that it has, also if many jobs were looked at meanwhile."""
    epsilon_of(1.5, 10)
    for number in range(2 * accounting.MECHANISMS_KEPT):
        epsilon_of(2 + number / 2**16, 10)
    epsilon_of(1.5, 10)
    assert asked[1.5, 10] == 1


def test_kept_figure_does_not_keep_the_earlier_steps_of_its_job(asked: Counter[tuple[float, int]]) -> None:
    earlier = PrivacyEvent(sample_rate="0.01", noise_multiplier="1.25", steps=3)
    before = sys.getrefcount(earlier)
    accounting.epsilon(sample_rate=0.01, noise_multiplier=1.5, steps=7, delta=1e-5, earlier=(earlier,))
    accounting._digest.cache_clear()
    assert sys.getrefcount(earlier) == before
    assert accounting._kept_epsilon.cache_info().currsize == 1


def test_search_for_the_noise_of_a_new_job_displaces_no_figure() -> None:
    before = accounting._kept_epsilon.cache_info().currsize
    calibrate(target_epsilon=3.21, sample_rate=0.0321, steps=321, delta=1e-5, accountant="RDP")
    assert accounting._kept_epsilon.cache_info().currsize == before


def test_dp_accounting_is_not_imported_where_only_short_computations_are_allowed() -> None:
    """The import takes up to a second."""
    accounting.load.cache_clear()
    try:
        with only_short_computations(), pytest.raises(LongComputationError):
            accounting.load()
    finally:
        accounting.load()
    with only_short_computations():
        accounting.load()
