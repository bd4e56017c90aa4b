"""PLD takes seconds for each ε: that must not hold up the lease, the health check or other jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster
from tensafe_operator import reconcile
from tensafe_operator.plan import decide
from tensafe_operator.plan.observed import Decision


class Api:
    """Takes every status."""

    async def apply_status(self, job: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        return {**job, "status": status}

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest


@pytest.mark.parametrize(("accountant", "aside"), [("PLD", True), ("RDP", False)])
def test_slow_arithmetic_is_done_beside_the_event_loop(
    accountant: str, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []

    def noted(*arguments: Any) -> Decision:
        threads.append(threading.current_thread() is not threading.main_thread())
        return decide(*arguments)

    monkeypatch.setattr(reconcile, "decide", noted)
    changes = {"metadata__resourceVersion": "1", "spec__suspend": True}
    cluster = FakeCluster.with_job(spec__privacy__accountant=accountant, **changes)
    reconciler: Any = reconcile.Reconciler(Api(), SETTINGS)  # type: ignore[arg-type]
    asyncio.run(reconciler.reconcile("clinic", "claims-triage", cluster.observe()))
    assert set(threads) == {aside}
