"""The API server, as a benchmark talks to it: plain requests as an administrator or as somebody else, and watches.

Times are this process' own, taken when an event arrives: an object's `creationTimestamp` has whole seconds only. The
requests are bare `aiohttp`, since what measures must take little of the two cores that it shares with what it measures.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tensafe_operator.runtime.api_client import RESOURCES, Resource

Object = dict[str, Any]
Heard = Callable[[str, Object, float], None]
"""What is told of an event: its type, the object, and when it arrived (monotonic seconds)."""
Happened = Callable[[], object]
"""Whether something has happened; or what can be awaited for that."""
PLACES = {
    **RESOURCES,
    "RayCluster": Resource("ray.io", "v1", "rayclusters"),
    "Namespace": Resource("", "v1", "namespaces"),
}
MERGE = "application/merge-patch+json"
_BARE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_LISTED_BARE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Refused(Exception):
    """The API server says no."""


@dataclass(frozen=True)
class User:
    """Somebody whom the administrator acts for. `pod`: UID of the pod that a service account's token is bound to."""

    name: str
    groups: tuple[str, ...] = ()
    pod: str = ""

    @property
    def headers(self) -> list[tuple[str, str]]:
        bound = [("Impersonate-Extra-authentication.kubernetes.io%2Fpod-uid", self.pod)] if self.pod else []
        return [("Impersonate-User", self.name), *(("Impersonate-Group", group) for group in self.groups), *bound]


def service_account(namespace: str, name: str, pod: str) -> User:
    """A service account in one of its pods."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups, pod)


class Server:
    """Requests to one API server. Make it by `connected`."""

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
        """One request and its answer.

        Raises:
            Refused: with the server's own sentence.
        """
        headers = [("Content-Type", content_type), *(user.headers if user else ())]
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self._url + path, data=data, headers=headers) as answer:
            document: Object = json.loads(await answer.read())
        if answer.status >= 400:
            raise Refused(f"{method} {path}: {answer.status} {document.get('message')}")
        return document

    async def create(self, document: Object) -> Object:
        namespace = document["metadata"].get("namespace")
        return await self.request("POST", PLACES[document["kind"]].path(namespace), document)

    async def patch(self, kind: str, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        return await self.request("PATCH", PLACES[kind].path(namespace, name, subresource), body, content_type=MERGE)

    async def list(self, kind: str) -> list[Object]:
        """All objects of a kind."""
        return list((await self.request("GET", PLACES[kind].path(None)))["items"])

    async def watch(self, kind: str, heard: Heard, *, bare: bool = False) -> None:
        """Tell of all objects of a kind that there are and of every change after that, until cancelled.

        Args:
            bare: metadata alone.
        """
        path = PLACES[kind].path(None)
        headers = {"Accept": _LISTED_BARE if bare else "application/json"}
        while True:
            async with self._session.get(self._url + path, headers=headers) as answer:
                listed = json.loads(await answer.read())
            if answer.status == 200:
                break
            await asyncio.sleep(0.2)  # the API server makes room for a kind that is new to it
        now = time.monotonic()
        for found in listed["items"] or ():
            heard("ADDED", found, now)
        version = listed["metadata"]["resourceVersion"]
        headers = {"Accept": _BARE if bare else "application/json"}
        while True:
            query = f"?watch=1&allowWatchBookmarks=true&resourceVersion={version}"
            async with self._session.get(self._url + path + query, headers=headers) as answer:
                async for line in _lines(answer.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise Refused(f"watching {kind}: {event['object'].get('message')}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        heard(event["type"], event["object"], time.monotonic())


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Server]:
    """A server, as the kubeconfig's user sees it."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile() as both:
        pems = (base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
        both.write(b"\n".join(pems))
        both.flush()
        context.load_cert_chain(both.name)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Server(session, cluster["server"])


async def until(happened: Happened, seconds: float) -> bool:
    """Wait until something has happened, for so long at most. Whether it has."""
    deadline = time.monotonic() + seconds
    while not (await found if inspect.isawaitable(found := happened()) else found):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def each(count: int, doings: list[Callable[[], Any]]) -> None:
    """Do all of these, `count` at a time."""
    turn = asyncio.Semaphore(count)

    async def one(doing: Callable[[], Any]) -> None:
        async with turn:
            await doing()

    async with asyncio.TaskGroup() as group:
        for doing in doings:
            group.create_task(one(doing))


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def key_of(document: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name."""
    return str(document["metadata"]["namespace"]), str(document["metadata"]["name"])
