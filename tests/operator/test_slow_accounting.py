"""Accounting with PLD takes seconds for each ε. It must not block the Lease, the health check or other jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster
from tensafe_api import accounting
from tensafe_api.long_computations import LongComputationError, only_short_computations
from tensafe_operator import reconcile
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


async def guarded() -> bool:
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
    asyncio.run(reconciler.compute(cluster.observe()))
    assert api.statuses == []
    run(patient=False)
    run(patient=True)
    assert threads == [False, True, False, True]
    assert api.statuses[0]["privacy"] == api.statuses[1]["privacy"]


@pytest.mark.parametrize("accountant", ["PLD", "RDP"])
def test_each_figure_that_takes_long_is_refused_where_only_short_ones_are_allowed(
    accountant: accounting.AccountantName,
) -> None:
    rate = {"PLD": 0.0123, "RDP": 0.0124}[accountant]
    claim: dict[str, Any] = {"sample_rate": rate, "steps": 77, "delta": 1e-6, "accountant": accountant}
    calls = [
        lambda: accounting.calibrate(target_epsilon=4.5, **claim),
        lambda: str(accounting.epsilon(noise_multiplier=1.2345, **claim)),
    ]
    for call in calls:
        with only_short_computations(), pytest.raises(LongComputationError):
            call()
        computed = call()
        with only_short_computations():
            assert call() == computed, "it is cached"


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
