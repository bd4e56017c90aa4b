"""Ill is who lags, who hears nothing of the API server, and who lost its Lease and has not ended; metrics tell it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from prometheus_client import generate_latest

from tensafe_operator.runtime import health as module
from tensafe_operator.runtime import leader_election as lease_module
from tensafe_operator.runtime.health import Health
from tensafe_operator.runtime.leader_election import LEASE_SECONDS, LeaderElection
from tensafe_operator.runtime.metrics import Metrics


class Server:
    """Keeps one Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None

    async def get(self, *_: str) -> dict[str, Any] | None:
        return self.lease

    async def create(self, document: dict[str, Any]) -> None:
        self.lease = document

    replace = create


class Clock:
    """Stands in the place of `time`, and can be put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real, of_lease = time.monotonic, lease_module._now
        monkeypatch.setattr(time, "monotonic", lambda: real() + self.ahead)
        monkeypatch.setattr(lease_module, "_now", lambda: of_lease() + self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def made() -> tuple[Health, LeaderElection, Metrics]:
    server: Any = Server()
    metrics, lease = Metrics(), LeaderElection(server, "tensafe-system", "me")
    return Health(metrics, lease), lease, metrics


def value(metrics: Metrics, name: str) -> float:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


def test_who_led_and_no_longer_renews_is_ill_until_it_lets_go(clock: Clock) -> None:
    health, lease, _ = made()
    clock.ahead = 60.0
    assert health.illness() == "", "who never led renews nothing"
    asyncio.run(lease.acquire())
    clock.ahead += LEASE_SECONDS - 1
    assert health.illness() == ""
    clock.ahead += 2
    assert not lease.leading
    assert health.illness().startswith("the lease was last renewed 11 s ago")
    clock.ahead -= 5
    asyncio.run(lease.release())
    clock.ahead += 60
    assert health.illness() == "", "who let go owes nothing"


def test_an_api_server_that_says_nothing_for_long_is_told(clock: Clock) -> None:
    health, _, metrics = made()
    assert abs(value(metrics, "tensafe_api_last_heard_timestamp_seconds") - time.time()) < 60
    clock.ahead = module.SILENT_SECONDS + 1
    assert "nothing was heard of the API server for 151 s" in health.illness()
    health.heard()
    assert health.illness() == ""


def test_a_loop_that_is_blocked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK", 0.05)
    monkeypatch.setattr(module, "LAG_SECONDS", 0.2)
    health, _, metrics = made()
    server: Any = Server()

    async def block() -> None:
        listening = asyncio.create_task(health.listen(server, "tensafe-system"))
        await asyncio.sleep(0)
        time.sleep(0.4)
        await asyncio.sleep(0.01)
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening

    asyncio.run(block())
    assert value(metrics, "tensafe_event_loop_lag_seconds") > 0.2
    assert health.illness().startswith("the event loop lags")
