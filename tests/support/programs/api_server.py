"""An asynchronous client of the API server for fakes and benchmarks: single requests, impersonation, and watches.

A kubeconfig comes in, and plain JSON objects go out. The requests use `aiohttp` directly. A benchmark shares two cores
with the programs that it measures, so its own client must be cheap. A watch passes on the time at which an event
arrived, because an object's `creationTimestamp` has whole seconds only.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tensafe_operator.kinds import KINDS
from tensafe_operator.runtime.objects import RUNTIME_RESOURCES, Resource

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name of an object."""
WatchCallback = Callable[[str, Object, float], None]
"""Receives the type of an event, the object, and the time at which the event arrived (monotonic seconds)."""
Condition = Callable[[], object]
"""Returns whether a condition holds, or an awaitable of that."""
RESOURCES = {
    **RUNTIME_RESOURCES,
    **KINDS.resources,
    "RayCluster": Resource("ray.io", "v1", "rayclusters"),
    "Namespace": Resource("", "v1", "namespaces"),
}
MERGE_PATCH = "application/merge-patch+json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_ONLY_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class RequestRejected(Exception):
    """The API server answered with an error; the message is the server's own."""


@dataclass(frozen=True)
class User:
    """A user whom the administrator impersonates. `pod`: UID of the pod that a service account's token is bound to."""

    name: str
    groups: tuple[str, ...] = ()
    pod: str = ""

    @property
    def headers(self) -> list[tuple[str, str]]:
        bound = [("Impersonate-Extra-authentication.kubernetes.io%2Fpod-uid", self.pod)] if self.pod else []
        return [("Impersonate-User", self.name), *(("Impersonate-Group", group) for group in self.groups), *bound]


def service_account(namespace: str, name: str, pod: str) -> User:
    """A service account, as one of its pods authenticates."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups, pod)


class ApiServer:
    """Requests to one API server. Created by `connect`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        user: User | None = None,
    ) -> Object:
        """Send one request and return the answer.

        Raises:
            RequestRejected: the server answered with an error.
        """
        headers = [("Content-Type", content_type), *(user.headers if user else ())]
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self._url + path, data=data, headers=headers) as answer:
            document: Object = json.loads(await answer.read())
        if answer.status >= 400:
            raise RequestRejected(f"{method} {path}: {answer.status} {document.get('message')}")
        return document

    async def create(self, document: Object) -> Object:
        namespace = document["metadata"].get("namespace")
        return await self.request("POST", RESOURCES[document["kind"]].path(namespace), document)

    async def get(self, kind: str, namespace: str, name: str, *, user: User | None = None) -> Object:
        return await self.request("GET", RESOURCES[kind].path(namespace, name), user=user)

    async def patch(self, kind: str, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        path = RESOURCES[kind].path(namespace, name, subresource)
        return await self.request("PATCH", path, body, content_type=MERGE_PATCH)

    async def watch(self, kind: str, callback: WatchCallback, *, metadata_only: bool = False) -> None:
        """Report all existing objects of a kind, then every change, until cancelled.

        Args:
            metadata_only: request the metadata alone.

        Raises:
            RequestRejected: the server ended the watch with an error.
        """
        path = RESOURCES[kind].path(None)
        headers = {"Accept": _METADATA_ONLY_LIST if metadata_only else "application/json"}
        while True:
            async with self._session.get(self._url + path, headers=headers) as answer:
                listed = json.loads(await answer.read())
            if answer.status == 200:
                break
            await asyncio.sleep(0.2)  # a new CRD is not served yet
        now = time.monotonic()
        for found in listed["items"] or ():
            callback("ADDED", found, now)
        version = listed["metadata"]["resourceVersion"]
        headers = {"Accept": _METADATA_ONLY if metadata_only else "application/json"}
        while True:
            query = f"?watch=1&allowWatchBookmarks=true&resourceVersion={version}"
            async with self._session.get(self._url + path + query, headers=headers) as answer:
                async for line in _lines(answer.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RequestRejected(f"watching {kind}: {event['object'].get('message')}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        callback(event["type"], event["object"], time.monotonic())


@asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncIterator[ApiServer]:
    """Connect as the user of a kubeconfig, who has either a client certificate or a token."""
    url, context, headers = credentials(kubeconfig)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield ApiServer(session, url)


def credentials(kubeconfig: Path) -> tuple[str, ssl.SSLContext, dict[str, str]]:
    """The URL of a kubeconfig's server, and the TLS context and the headers of its user."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    if "client-key-data" in user:
        with tempfile.NamedTemporaryFile() as both:
            pems = (base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
            both.write(b"\n".join(pems))
            both.flush()
            context.load_cert_chain(both.name)
    return cluster["server"], context, headers


async def wait_for(condition: Condition, seconds: float) -> bool:
    """Wait until a condition holds, for at most so many seconds of the clock; return whether it does."""
    deadline = time.monotonic() + seconds
    while not await holds(condition):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def holds(condition: Condition) -> bool:
    """Whether a condition holds now."""
    found = condition()
    return bool(await found if inspect.isawaitable(found) else found)


async def run_concurrently(limit: int, calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Run all calls, at most `limit` of them at a time."""
    semaphore = asyncio.Semaphore(limit)

    async def run(call: Callable[[], Awaitable[object]]) -> None:
        async with semaphore:
            await call()

    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(run(call))


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a stream into lines of any length; `readline` has a limit."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def key_of(document: Mapping[str, Any]) -> Key:
    """Namespace and name of an object."""
    return str(document["metadata"]["namespace"]), str(document["metadata"]["name"])
