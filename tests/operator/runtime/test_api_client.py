"""Requests end in time, and a process that is no longer the leader sends no write that waited for a connection."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from tensafe_operator.kinds import KINDS
from tensafe_operator.runtime import api_client
from tensafe_operator.runtime.api_client import CONNECTIONS, MAX_EVENTS, PAGE_SIZE, ApiClient
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable, UnknownKind
from tensafe_operator.runtime.objects import Manifest

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def client_of(
    answer: Answer,
    may_write: Callable[[], bool] = lambda: True,
    on_response: Callable[[str, int], None] = lambda method, status: None,
) -> AsyncIterator[ApiClient]:
    """A client of a server that answers so."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        url = str(server.make_url("")).rstrip("/")
        client = ApiClient(Configuration(host=url), KINDS.resources, "test", on_response, may_write)
        try:
            yield client
        finally:
            await client.close()


def test_write_that_waits_for_a_connection_is_not_sent_once_the_lease_is_lost() -> None:
    methods: list[str] = []
    all_busy, finish = asyncio.Event(), asyncio.Event()
    leading = [True]

    async def answer(request: web.Request) -> web.Response:
        methods.append(request.method)
        if len(methods) == CONNECTIONS:
            all_busy.set()
        await finish.wait()
        return web.json_response({})

    async def run() -> None:
        async with client_of(answer, lambda: leading[0]) as client:
            reads = [asyncio.create_task(client.get("Secret", "clinic", str(each))) for each in range(CONNECTIONS)]
            await all_busy.wait()
            write = asyncio.create_task(client.delete("Secret", "clinic", "key"))
            await asyncio.sleep(0)
            leading[0] = False
            finish.set()
            with pytest.raises(ApiUnavailable, match="may no longer be the leader"):
                await write
            await asyncio.gather(*reads)
        assert set(methods) == {"GET"}

    asyncio.run(run())


def test_answer_that_drips_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "REQUEST_SECONDS", 0.3)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    async def run() -> None:
        async with client_of(answer) as client, asyncio.timeout(20):
            with pytest.raises(ApiUnavailable):
                await client.get("Secret", "clinic", "key")

    asyncio.run(run())


@pytest.mark.slow
def test_wait_for_a_connection_is_not_part_of_the_time_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer takes half of the time, and the last request waits for three others."""
    monkeypatch.setattr(api_client, "REQUEST_SECONDS", 1.0)

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.json_response({})

    async def run() -> None:
        async with client_of(answer) as client:
            await asyncio.gather(*(client.get("Secret", "clinic", str(each)) for each in range(4 * CONNECTIONS)))

    asyncio.run(run())


@pytest.mark.slow
def test_webhook_that_fails_or_may_hang_is_distinguished_from_an_api_server_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only requests of this kind are affected, so that the job can say what it waits for."""
    monkeypatch.setattr(api_client, "REQUEST_SECONDS", 0.3)
    manifest = {"kind": "RayJob", "metadata": {"namespace": "clinic", "name": "a"}}
    failed = 'Internal error occurred: failed calling webhook "site": connection refused'

    async def error_of(message: str, *, write: bool) -> ApiUnavailable:
        async def answer(request: web.Request) -> web.Response:
            if not message:
                await asyncio.sleep(5)
            return web.json_response({"message": message}, status=500)

        async with client_of(answer) as client:
            with pytest.raises(ApiUnavailable) as raised:
                await (client.create(manifest) if write else client.get("RayJob", "clinic", "a"))
            return raised.value

    found = [
        (asyncio.run(error_of(message, write=write)).webhook, message, write)
        for message in ("", failed, "etcdserver: leader changed")
        for write in (True, False)
        if message != failed or write
    ]
    assert [each for each in found if each[0]] == [(True, "", True), (True, failed, True)]
    assert "an admission webhook may not answer" in str(asyncio.run(error_of("", write=True)))


def test_lists_are_read_in_pages_and_only_what_is_needed_is_kept() -> None:
    asked: list[str] = []
    pods = PAGE_SIZE + 2

    async def answer(request: web.Request) -> web.Response:
        limit, start = int(request.query["limit"]), int(request.query.get("continue") or 0)
        asked.append(f"{limit} {request.query.get('labelSelector') or request.query.get('fieldSelector')}")
        end = start + limit if "fieldSelector" in request.query else min(start + limit, pods)
        items = [{"metadata": {"name": str(each)}, "spec": "x"} for each in range(start, end)]
        metadata = {"resourceVersion": "7", "continue": "" if end == pods else str(end)}
        return web.json_response({"apiVersion": "v1", "metadata": metadata, "items": items})

    def name_if_even(body: Manifest) -> Manifest | None:
        name = body["metadata"]["name"]
        return {"name": name} if int(name) % 2 == 0 else None

    async def run() -> None:
        async with client_of(answer) as client:
            found = await client.find("Pod", "clinic", {"a": "b"}, name_if_even)
            assert found == [{"name": str(each)} for each in range(0, pods, 2)]
            assert asked == [f"{PAGE_SIZE} a=b"] * 2
            asked.clear()
            events = await client.warning_events("clinic", name_if_even, kind="Pod")
            assert len(events) >= MAX_EVENTS / 2
            assert asked == [f"{PAGE_SIZE} involvedObject.kind=Pod,type=Warning"] * math.ceil(MAX_EVENTS / PAGE_SIZE)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answered", "served"),
    [({"details": {"name": "x"}}, True), ({"details": {}}, False), ("404 page not found", False)],
)
def test_object_of_a_kind_that_is_not_served_is_not_missing(answered: Any, served: bool) -> None:
    async def answer(request: web.Request) -> web.Response:
        text = answered if isinstance(answered, str) else json.dumps(answered)
        return web.Response(status=404, text=text)

    async def run() -> None:
        async with client_of(answer) as client:
            assert await client.get("Secret", "clinic", "x") is None
            if served:
                assert await client.get_served("Secret", "clinic", "x") is None
            else:
                with pytest.raises(ApiUnavailable, match="does not serve secrets"):
                    await client.get_served("Secret", "clinic", "x")

    asyncio.run(run())


def test_list_of_a_kind_that_is_not_served_is_not_empty() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=404, text="404 page not found")

    async def run() -> None:
        async with client_of(answer) as client:
            with pytest.raises(UnknownKind, match="does not serve pods"):
                await client.find("Pod", "clinic", {}, dict)

    asyncio.run(run())


def test_status_is_written_with_the_spec_whose_fields_the_crd_must_know() -> None:
    """Where it lacks one, the write would delete it for good."""
    asked: list[tuple[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.query["fieldValidation"], await request.json()))
        return web.json_response({})

    async def run() -> None:
        metadata = {"name": "x", "namespace": "clinic", "resourceVersion": "7"}
        document = {"kind": "TenSafeTrainingJob", "metadata": metadata, "spec": {"new": 1}}
        async with client_of(answer) as client:
            await client.replace_status(document, {"phase": "Running"})

    asyncio.run(run())
    ((validation, operations),) = asked
    assert validation == "Strict"
    written = {each["path"]: each["value"] for each in operations}
    assert written == {"/metadata/resourceVersion": "7", "/spec": {"new": 1}, "/status": {"phase": "Running"}}


def test_each_answer_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "REQUEST_SECONDS", 0.3)
    counted: list[tuple[str, int]] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            await asyncio.sleep(5)
        return web.json_response({}, status=200 if request.method == "GET" else 403)

    async def run() -> None:
        async with client_of(answer, on_response=lambda *each: counted.append(each)) as client:
            await client.get("Secret", "clinic", "key")
            with pytest.raises(ApiError):
                await client.review("TokenReview", {"token": "a"})
            with pytest.raises(ApiUnavailable):
                await client.delete("Secret", "clinic", "key")

    asyncio.run(run())
    assert counted == [("GET", 200), ("POST", 403), ("DELETE", 0)]
