"""Accounting with PLD takes seconds for each ε. It must not block the Lease, the health check or other jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster
from tensafe_api import accounting
from tensafe_api.resources.status import Status
from tensafe_operator import reconcile
from tensafe_operator.plan import decide
from tensafe_operator.plan.observed import Decision


class AcceptingApi:
    """Accepts every write."""

    async def apply_status(self, job: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        return {**job, "status": status}

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest


def test_dp_accounting_is_imported_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import takes up to a second. It happens once, with the first job."""
    threads: list[bool] = []

    async def guarded() -> bool:
        return True

    monkeypatch.setattr(
        accounting, "load", lambda: threads.append(threading.current_thread() is not threading.main_thread())
    )
    monkeypatch.setattr(reconcile, "decide", lambda *arguments: Decision((), Status()))
    monkeypatch.setattr(reconcile, "admit", lambda job: None)
    cluster = FakeCluster.with_job(metadata__resourceVersion="1", spec__privacy__accountant="RDP")
    reconciler: Any = reconcile.Reconciler(AcceptingApi(), SETTINGS, guarded=guarded)  # type: ignore[arg-type]
    for _ in range(3):
        asyncio.run(reconciler.reconcile("clinic", "claims-triage", cluster.observe()))
    assert threads == [True]


@pytest.mark.parametrize(("accountant", "in_thread"), [("PLD", True), ("RDP", False)])
def test_slow_accounting_runs_in_a_thread(accountant: str, in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    async def guarded() -> bool:
        return True

    def record_thread(*arguments: Any) -> Decision:
        threads.append(threading.current_thread() is not threading.main_thread())
        return decide(*arguments)

    monkeypatch.setattr(reconcile, "decide", record_thread)
    # The noise multiplier is given: calibrating it with PLD takes half a minute.
    changes = {"metadata__resourceVersion": "1", "spec__suspend": True, "spec__privacy__noiseMultiplier": "2.0"}
    cluster = FakeCluster.with_job(spec__privacy__accountant=accountant, **changes)
    reconciler: Any = reconcile.Reconciler(AcceptingApi(), SETTINGS, guarded=guarded)  # type: ignore[arg-type]
    asyncio.run(reconciler.reconcile("clinic", "claims-triage", cluster.observe()))
    assert set(threads) == {in_thread}
