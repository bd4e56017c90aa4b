"""At most one process leads, whatever its wall clock shows and however the API server fails. A cancelled election ends,
whenever the cancellation arrives: a process that has ended except for renewing its Lease would prevent every other one
from leading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient as Library
from kubernetes.aio.client import ApiException, Configuration
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from tensafe_operator.runtime import leader_election
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.leader_election import LeaderElection
from tensafe_operator.runtime.lease_durations import LeaseDurations
from tests.support.lease_store import LeaseStore

TURNS = range(8)
"""Numbers of turns of the event loop between the answer and the cancellation."""
SHORT = LeaseDurations(lease=3, renew_deadline=2, retry_period=1)


class Clock:
    """Replaces the clock of the election; `skip` advances it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(leader_election, "_now", lambda: self.now)

    def skip(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def tries(election: LeaderElection) -> bool:
    """Whether one attempt acquires or renews the Lease."""
    return asyncio.run(election.try_acquire_or_renew())


def test_leader_stops_before_another_process_may_lead(clock: Clock) -> None:
    store = LeaseStore()
    leader = store.candidate("me", LeaseDurations(lease=60, renew_deadline=45, retry_period=5))
    other = store.candidate("other")
    asyncio.run(leader.acquire())
    assert store.lease is not None and store.lease["spec"]["leaseDurationSeconds"] == 60
    assert not tries(other)
    clock.skip(44)
    assert leader.leading
    clock.skip(2)
    assert not leader.leading
    assert not tries(other), "the duration in the Lease counts, not the shorter one of this process"
    clock.skip(15)
    assert tries(other) and other.leading
    assert not tries(leader) and not leader.leading


def test_renewed_lease_is_not_taken(clock: Clock) -> None:
    store = LeaseStore()
    leader, other = store.candidate("me"), store.candidate("other")
    asyncio.run(leader.acquire())
    began = (store.lease or {})["spec"]["acquireTime"]
    for _ in range(10):
        clock.skip(5)
        assert tries(leader) and leader.leading
        assert not tries(other)
    assert (store.lease or {})["spec"]["acquireTime"] == began


@pytest.mark.parametrize("days", [1, -1])
def test_wall_clock_that_is_set_changes_no_leader(days: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own election takes the Lease after a step forward, and waits for a day after one back."""
    store = LeaseStore()
    leader, other = store.candidate("me"), store.candidate("other")
    asyncio.run(leader.acquire())
    assert not tries(other)
    own = time.time
    monkeypatch.setattr(time, "time", lambda: own() + days * 86400)
    assert not tries(other) and leader.leading
    clock.skip(11)
    assert tries(other)


def test_lease_that_was_given_up_is_free_at_once(clock: Clock) -> None:
    store = LeaseStore()
    leader, other = store.candidate("me"), store.candidate("other")
    asyncio.run(leader.acquire())
    asyncio.run(leader.give_up())
    assert not leader.leading and leader.unrenewed == 0
    assert tries(other)


def test_lease_is_given_up_after_a_renewal_without_an_answer(clock: Clock) -> None:
    """A process that stops cancels its renewal, which the API server may have stored."""
    store = LeaseStore()
    leader, renewal = store.candidate("me"), store.candidate("me")
    asyncio.run(leader.acquire())
    assert tries(renewal)
    asyncio.run(leader.give_up())
    assert tries(store.candidate("other"))


def test_process_that_lost_the_lease_does_not_give_up_that_of_another(clock: Clock) -> None:
    store = LeaseStore()
    leader, other = store.candidate("me"), store.candidate("other")
    asyncio.run(leader.acquire())
    store.lease["spec"]["holderIdentity"] = ""  # type: ignore[index]  # by hand
    assert tries(other) and leader.leading
    asyncio.run(leader.give_up())
    assert (store.lease or {})["spec"]["holderIdentity"] == "other"


@pytest.mark.parametrize(
    "error", [aiohttp.ClientConnectionError(), TimeoutError(), ConnectionResetError(), ApiException(500, "no etcd")]
)
def test_api_server_that_fails_ends_no_election(error: Exception, clock: Clock) -> None:
    store = LeaseStore()
    leader = store.candidate("me")
    asyncio.run(leader.acquire())
    store.error = error
    assert not tries(leader) and leader.leading
    clock.skip(8)
    assert not leader.leading and leader.unrenewed == 8
    store.error = None
    assert tries(leader)


@pytest.mark.slow
def test_election_ends_in_time_while_the_api_server_answers_nothing() -> None:
    """A frozen API server accepts connections and requests."""
    frozen = [False]

    async def answer(request: web.Request) -> web.Response:
        if frozen[0]:
            await asyncio.sleep(60)
        if request.method == "GET":
            return web.json_response({"code": 404}, status=404)
        return web.json_response(await request.json(), status=201)

    async def run(client: ApiClient) -> float:
        election = LeaderElection(client, "tensafe-system", "a-lease", "me", SHORT)
        await election.acquire()
        frozen[0] = True
        began = time.monotonic()
        await election.keep()
        assert not election.leading
        await election.give_up()
        return time.monotonic() - began

    assert asyncio.run(served(answer, run)) < 5


async def served(answer: Callable[[web.Request], Awaitable[web.Response]], run: Callable[[ApiClient], Any]) -> Any:
    """What `run` returns with a client of a server that answers so."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        client = ApiClient(Configuration(host=str(server.make_url("")).rstrip("/")), {}, "test")
        try:
            return await run(client)
        finally:
            await client.close()


@pytest.mark.parametrize("turns", TURNS)
def test_cancelled_election_stops_renewing_however_near_the_answer_is(turns: int) -> None:
    requested, finish = asyncio.Event(), asyncio.Event()

    class SlowStore(LeaseStore):
        async def replace_namespaced_lease(self, *arguments: Any) -> Any:
            requested.set()
            await finish.wait()
            finish.clear()
            return await super().replace_namespaced_lease(*arguments)

    async def run() -> bool:
        election = SlowStore().candidate("me", SHORT)
        election.durations = replace(SHORT, retry_period=0.01)  # before each renewal
        await election.acquire()
        keeping = asyncio.ensure_future(election.keep())
        await requested.wait()
        finish.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        keeping.cancel()
        done, _ = await asyncio.wait([keeping], timeout=20)
        return bool(done)

    assert asyncio.run(run())


def test_own_lock_is_still_needed() -> None:
    """This fails when the package's lock creates a missing Lease, or counts a lost connection as not renewed."""

    async def run() -> None:
        lock = LeaseLock("a-lease", "tensafe-system", "me", Library(Configuration(host="http://127.0.0.1:1")))
        now = "2026-01-01 00:00:00.5"
        with pytest.raises(ValueError, match="pretty"):
            await lock.create("a-lease", "tensafe-system", LeaderElectionRecord("me", "10", now, now))
        with pytest.raises(aiohttp.ClientConnectionError):
            await lock.get("a-lease", "tensafe-system")
        await lock.api_instance.api_client.close()

    asyncio.run(run())
