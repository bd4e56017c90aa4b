"""A blocked event loop, a silent API server and an overdue Lease are reported as unhealthy, and exported as metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tensafe_operator.runtime import health as health_module
from tensafe_operator.runtime import leader_election
from tensafe_operator.runtime.authorization import Authorizer
from tensafe_operator.runtime.health import Health
from tensafe_operator.runtime.leader_election import LeaderElection
from tensafe_operator.runtime.lease_durations import DEFAULT_DURATIONS
from tensafe_operator.runtime.metrics import OperatorMetrics
from tests.support.lease_store import LeaseStore


class Clock:
    """Replaces the clocks of the modules under test; `ahead` is added to the real time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        monotonic, lease_now = time.monotonic, leader_election._now
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.ahead)
        monkeypatch.setattr(leader_election, "_now", lambda: lease_now() + self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def make_health() -> tuple[Health, LeaderElection, OperatorMetrics]:
    metrics, election = OperatorMetrics("tensafe"), LeaseStore().candidate("me")
    return Health(metrics, election), election, metrics


def value(metrics: OperatorMetrics, name: str) -> float:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


def test_leader_that_no_longer_renews_is_unhealthy_until_it_gives_the_lease_up(clock: Clock) -> None:
    health, election, _ = make_health()
    clock.ahead = 60.0
    assert health.problem() == "", "a process that never led has nothing to renew"
    asyncio.run(election.acquire())
    clock.ahead += DEFAULT_DURATIONS.lease - 1
    assert health.problem() == ""
    clock.ahead += 2
    assert not election.leading
    assert health.problem().startswith("the lease was last renewed 11 s ago")
    clock.ahead -= 5
    asyncio.run(election.give_up())
    clock.ahead += 60
    assert health.problem() == "", "a process that gave the Lease up has nothing to renew"


def test_silent_api_server_is_unhealthy(clock: Clock) -> None:
    health, _, metrics = make_health()
    assert abs(value(metrics, "tensafe_api_last_heard_timestamp_seconds") - time.time()) < 60
    clock.ahead = health_module.SILENT_SECONDS + 1
    assert "no answer and no event from the API server for 151 s" in health.problem()
    health.heard()
    assert health.problem() == ""


@pytest.mark.slow
def test_blocked_event_loop_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "_TICK_SECONDS", 0.05)
    monkeypatch.setattr(health_module, "LAG_SECONDS", 0.2)
    health, _, metrics = make_health()

    async def block() -> None:
        monitoring = asyncio.create_task(health.monitor(lambda: asyncio.sleep(0)))
        await asyncio.sleep(0)
        time.sleep(0.4)
        await asyncio.sleep(0.01)
        monitoring.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await monitoring

    asyncio.run(block())
    assert value(metrics, "tensafe_event_loop_lag_seconds") > 0.2
    assert health.problem().startswith("the event loop lags")


def test_authorization_with_a_byte_that_is_no_utf8_is_refused() -> None:
    unused: Any = None  # an API server that must not be asked

    async def run() -> bytes:
        runner = await make_health()[0].serve(0, authorizer=Authorizer(unused))
        try:
            reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer \xff\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer
        finally:
            await runner.cleanup()

    assert asyncio.run(run()).startswith(b"HTTP/1.1 401 ")


class SlowCollector(Collector):
    """Takes a twentieth of a second, as the metrics of 400 jobs do."""

    SECONDS = 0.05

    def __init__(self, length: int = 1) -> None:
        self.calls, self._length = 0, length

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.calls += 1
        time.sleep(self.SECONDS)
        yield GaugeMetricFamily("slow", "x" * self._length, value=self.calls)


async def ask(runner: Any, method: str = "GET") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    writer.write(f"{method} /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    return reader, writer


@pytest.mark.slow
def test_many_clients_of_the_metrics_do_not_block_the_event_loop() -> None:
    """500 of them stopped the operator of a cluster with 300 jobs: it lost its Lease."""
    clients, collector = 60, SlowCollector()

    async def run() -> tuple[list[bytes], int, bytes]:
        health, _, metrics = make_health()
        runner = await health.serve(0)
        metrics.registry.register(collector)
        try:
            opened = [await ask(runner) for _ in range(clients)]
            answers = [await reader.read() for reader, _ in opened]
            calls = collector.calls
            await asyncio.sleep(2 * SlowCollector.SECONDS / health_module.METRICS_SHARE)
            later, _ = await ask(runner)
            return answers, calls, await later.read()
        finally:
            await runner.cleanup()

    answers, calls, later = asyncio.run(run())
    assert all(b"slow " in each for each in answers)
    assert calls < clients / 6
    assert f"slow {float(collector.calls)}".encode() in later, "a later client gets newer metrics"


@pytest.mark.slow
def test_client_that_does_not_read_the_metrics_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "ANSWER_SECONDS", 0.3)
    length = 32 * 2**20  # more than the buffers of a connection on loopback

    async def run() -> tuple[int, bytes]:
        health, _, metrics = make_health()
        runner = await health.serve(0)
        metrics.registry.register(SlowCollector(length))
        try:
            slow, _ = await ask(runner)
            await asyncio.sleep(1.5)
            received = 0
            with contextlib.suppress(ConnectionError):
                while part := await slow.read(2**20):
                    received += len(part)
            head, _ = await ask(runner, "HEAD")
            return received, await head.read()
        finally:
            await runner.cleanup()

    received, head = asyncio.run(run())
    assert received < length
    assert head.startswith(b"HTTP/1.1 200 ") and head.endswith(b"\r\n\r\n") and b"HELP" not in head


@pytest.mark.slow
def test_client_that_asks_again_and_again_without_reading_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 100 kB on one connection left 28 MB of answers in the memory of an operator with few jobs."""
    monkeypatch.setattr(health_module, "ANSWER_SECONDS", 0.3)

    async def run() -> tuple[int, int]:
        health, _, metrics = make_health()
        runner = await health.serve(0)
        metrics.registry.register(SlowCollector(length=8000))
        try:
            _, writer = await asyncio.open_connection(*runner.addresses[0][:2])
            client: Any = writer.transport
            client.pause_reading()
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 3000)
            largest, end = 0, time.monotonic() + 10
            while time.monotonic() < end and (largest == 0 or connections(runner)):
                largest = max([largest, *(each.get_write_buffer_size() for each in connections(runner))])
                await asyncio.sleep(0.01)
            return largest, len(connections(runner))
        finally:
            await runner.cleanup()

    def connections(runner: Any) -> list[asyncio.Transport]:
        return [each.transport for each in runner.server.connections if each.transport is not None]

    largest, left = asyncio.run(run())
    assert 0 < largest < 2**18 and left == 0
