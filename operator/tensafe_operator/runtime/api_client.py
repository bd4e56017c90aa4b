"""Requests to the API server: plain objects, one request per call, short timeouts, no cache.

Paths and mappings do the work of the `kubernetes` package, which takes 126 MB of an image, 20 to 110 MB of memory, and
a quarter of the time of a request (decision 0052). A refusal of the API server is an `ApiError` with the server's
message. A request without an answer is an `ApiUnavailable`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp

from tensafe_operator.runtime.api_errors import CONFLICT, NOT_FOUND, ApiError, ApiUnavailable, UnknownKind, error_of
from tensafe_operator.runtime.connection import Connection
from tensafe_operator.runtime.objects import RUNTIME_RESOURCES, Manifest, Resource
from tensafe_operator.runtime.proxies import proxy_of_environment

REQUEST_SECONDS = 10.0
CONNECTIONS = 8
"""How many requests of one client run concurrently. Each connection has a TLS buffer of 256 KiB."""
KIND_CACHE_SECONDS = 10.0
"""For how long a kind that existed is assumed to exist. If it was removed meanwhile, creating an object fails."""
PAGE_SIZE, SMALL_PAGE = 256, 3
"""Objects in one answer to a list, and how many if so many have more than LARGEST_ANSWER bytes. Users may create many
objects of 1.5 MB. Each takes 8 MB of memory, and 50 MB if it has nothing but empty objects.
"""
LARGEST_ANSWER = 8 * 1024**2
MAX_EVENTS = 1000
"""How many of the Events about some objects are read."""
_LONGEST_MESSAGE = 512
T = TypeVar("T")
"""What a caller keeps of an Event."""


class _TooLarge(Exception):
    """The answer has more bytes than the request allows."""


@dataclass(frozen=True)
class Page:
    """A part of a list, and the resource version of the whole list."""

    items: list[Manifest]
    version: int


class ApiClient:
    """Requests of one operator. Close it after use.

    Args:
        connection: address and credentials of the API server.
        resources: where the API serves each kind, besides Events and Leases.
        field_manager: name of this client, as field manager and as user agent.
        on_response: called after each request with its method and HTTP status (0: no answer).
        may_write: called before each write. A process that is no longer the leader must not write.
    """

    def __init__(
        self,
        connection: Connection,
        resources: Mapping[str, Resource],
        field_manager: str,
        on_response: Callable[[str, int], None] = lambda method, status: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._connection = connection
        self._resources = {**RUNTIME_RESOURCES, **resources}
        self._field_manager = field_manager
        self._on_response = on_response
        self._may_write = may_write
        self._session: aiohttp.ClientSession | None = None
        self._proxy = connection.proxy or proxy_of_environment(connection.server)
        self._known_until: dict[str, float] = {}
        self._free = asyncio.Semaphore(CONNECTIONS)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """The object, or None if it does not exist. namespace: None for a kind without namespaces."""
        try:
            return await self._find_one(kind, namespace, name)
        except UnknownKind:
            return None

    async def get_served(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """As `get`, for an object whose absence must not be confused with that of its kind.

        Raises:
            ApiUnavailable: if the API server does not serve the kind.
        """
        try:
            return await self._find_one(kind, namespace, name)
        except UnknownKind as error:
            raise ApiUnavailable(str(self._not_served(kind))) from error

    async def find(
        self, kind: str, namespace: str, labels: Mapping[str, str], keep: Callable[[Manifest], Manifest | None]
    ) -> list[Manifest]:
        """All objects of a kind with these labels.

        Args:
            keep: returns the part of an object that is needed, so that other parts take no memory; None: no part is.

        Raises:
            UnknownKind: if the API server does not serve the kind.
        """
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        pages = self.pages(kind, namespace, selector)
        return [kept async for page in pages for each in page.items if (kept := keep(each)) is not None]

    async def may_list(self, kind: str, namespace: str) -> None:
        """Ask for one object of a kind.

        Raises:
            ApiError: if this client may not list the kind in this namespace. A kind that is unknown is no error.
        """
        try:
            await self._request("GET", f"{self._resources[kind].path(namespace)}?limit=1")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    async def pages(
        self, kind: str, namespace: str | None, selector: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        """All objects of a kind (in one namespace, or in all of them), page by page.

        Raises:
            UnknownKind: if the API server does not serve the kind.
        """
        parameters = {"limit": str(PAGE_SIZE), "labelSelector": selector, "fieldSelector": fields, "continue": ""}
        largest: int | None = LARGEST_ANSWER
        while True:
            query = urlencode({name: value for name, value in parameters.items() if value})
            try:
                found = await self._request("GET", f"{self._resources[kind].path(namespace)}?{query}", largest=largest)
            except _TooLarge:
                parameters["limit"], largest = str(SMALL_PAGE), None
                continue
            except UnknownKind as error:
                raise self._not_served(kind) from error
            metadata = found["metadata"]
            common = {"apiVersion": found["apiVersion"], "kind": kind}  # items of built-in kinds lack these fields
            yield Page([{**common, **item} for item in found["items"]], int(metadata["resourceVersion"]))
            del found  # its memory, before the next page takes some
            parameters["continue"] = metadata.get("continue") or ""
            if not parameters["continue"]:
                return

    async def warning_events(
        self, namespace: str, keep: Callable[[Manifest], T | None], **involved_object: str
    ) -> list[T]:
        """The first MAX_EVENTS Events of type Warning about some objects, given by fields of `involvedObject` such as
        their kind; of each what `keep` returns, unless it is None.
        """
        selector = ",".join(f"involvedObject.{field}={value}" for field, value in involved_object.items())
        found: list[T] = []
        read = 0
        async for page in self.pages("Event", namespace, fields=f"{selector},type=Warning"):
            found += [kept for each in page.items if (kept := keep(each)) is not None]
            read += len(page.items)
            if read >= MAX_EVENTS:
                break
        return found

    async def knows(self, kind: str) -> bool:
        """Whether the cluster knows a kind now, or knew it in the last KIND_CACHE_SECONDS."""
        if time.monotonic() < self._known_until.get(kind, 0.0):
            return True
        resource = self._resources[kind]
        try:
            found = await self._request("GET", f"/apis/{resource.group}/{resource.version}")
        except ApiError as error:
            if error.status == NOT_FOUND:
                return False
            raise
        exists = any(each["name"] == resource.plural for each in found["resources"])
        if exists:
            self._known_until[kind] = time.monotonic() + KIND_CACHE_SECONDS
        return exists

    async def create(self, manifest: Manifest, *, dry_run: bool = False, strict: bool = False) -> Manifest:
        """Create an object; with `dry_run`, ask only whether the API server would.

        Args:
            strict: whether the API server refuses fields that it does not know. Otherwise it drops them.
        """
        kind, metadata = str(manifest["kind"]), manifest["metadata"]
        options = {"dryRun": "All"} if dry_run else {}
        if strict:
            options["fieldValidation"] = "Strict"
        query = urlencode({"fieldManager": self._field_manager, **options})
        return await self._request("POST", f"{self._resources[kind].path(metadata['namespace'])}?{query}", manifest)

    async def review(self, kind: str, spec: Mapping[str, Any]) -> Manifest:
        """Ask the API server by a review such as TokenReview, which it answers and does not store; return the answer's
        status.
        """
        resource = self._resources[kind]
        body = {"apiVersion": f"{resource.group}/{resource.version}", "kind": kind, "spec": spec}
        return dict((await self._request("POST", resource.path(None), body)).get("status") or {})

    async def apply(self, manifest: Manifest) -> Manifest:
        """Create an object or bring an existing one to `manifest`, by server-side apply. Fields of others are kept,
        except where `manifest` has the same field.
        """
        metadata = manifest["metadata"]
        path = self._resources[str(manifest["kind"])].path(metadata["namespace"], metadata["name"])
        return await self._apply(path, manifest)

    async def replace(self, document: Manifest) -> Manifest:
        """Replace a whole object; refused with CONFLICT if it has changed since `document` was read."""
        metadata = document["metadata"]
        path = self._resources[str(document["kind"])].path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, document)

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete the object with this UID (None: whichever has this name); its children are deleted after it. No error
        if it does not exist.
        """
        body = {"propagationPolicy": "Background", **({"preconditions": {"uid": uid}} if uid else {})}
        try:
            await self._request("DELETE", self._resources[kind].path(namespace, name), body)
        except ApiError as error:
            if error.status != NOT_FOUND and not (uid and error.status == CONFLICT):
                raise

    async def replace_status(
        self, document: Mapping[str, Any], status: Mapping[str, Any], *, without_managers: bool = False
    ) -> Manifest:
        """Replace the status of an object as a whole, unless the object has changed since `document` was read.

        By server-side apply, an entry of the status would stay after a user has reset `managedFields`.

        The spec is sent for one reason: the API server refuses it where the CRD lacks one of its fields. Otherwise this
        write would delete that field for good. The spec itself does not change with a status.

        Args:
            without_managers: whether to remove `managedFields`, which take as many bytes as the status.

        Raises:
            UnknownFields: if the CRD does not know a field of the object or of the status.
        """
        metadata = document["metadata"]
        operations = [("/metadata/resourceVersion", metadata["resourceVersion"])]
        operations += [("/spec", document["spec"]), ("/status", status)]
        operations += [("/metadata/managedFields", [{}])] if without_managers else []
        body = [{"op": "add", "path": path, "value": value} for path, value in operations]
        path = self._resources[str(document["kind"])].path(metadata["namespace"], metadata["name"], "status")
        query = urlencode({"fieldManager": self._field_manager, "fieldValidation": "Strict"})
        return await self._request("PATCH", f"{path}?{query}", body, "application/json-patch+json")

    def _not_served(self, kind: str) -> UnknownKind:
        return UnknownKind(NOT_FOUND, f"the API server does not serve {self._resources[kind].plural}")

    async def _apply(self, path: str, body: Manifest) -> Manifest:
        query = urlencode({"fieldManager": self._field_manager, "force": "true"})
        return await self._request("PATCH", f"{path}?{query}", body, "application/apply-patch+yaml")

    async def _find_one(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        try:
            return await self._request("GET", self._resources[kind].path(namespace, name))
        except ApiError as error:
            if error.status == NOT_FOUND and not isinstance(error, UnknownKind):
                return None
            raise

    async def _request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        *,
        largest: int | None = None,
    ) -> Manifest:
        async with self._free:  # its wait is not part of the time of the request
            return await self._send(method, path, body, content_type, largest)

    async def _send(self, method: str, path: str, body: Any, content_type: str, largest: int | None) -> Manifest:
        if method != "GET" and not self._may_write():  # after the wait for a connection
            raise ApiUnavailable("this process may no longer be the leader, so it does not write")
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        if authorization := self._connection.authorization():
            headers["Authorization"] = authorization
        data = None if body is None else _encode(body)
        try:
            async with self._open_session().request(
                method, self._connection.server + path, data=data, headers=headers, proxy=self._proxy
            ) as answer:
                text = await _read(answer, largest)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._on_response(method, 0)
            hangs = method != "GET" and isinstance(error, TimeoutError)
            hint = f" within {REQUEST_SECONDS:.0f} s: an admission webhook may not answer" if hangs else ""
            message = f"the API server does not answer ({type(error).__name__}){hint}"
            raise ApiUnavailable(message, webhook=hangs) from error
        self._on_response(method, answer.status)
        document = _parse(text)
        if answer.status >= 400:
            raise error_of(answer.status, document, str(document.get("message") or answer.reason))
        return document

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:  # not in __init__: a session needs the running event loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._connection.ssl_context or True),
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
                headers={"User-Agent": self._field_manager},
            )
        return self._session


def _encode(body: Any) -> bytes:
    """JSON that is never longer than what the API server stores of it. So an object that it can store, of 1.5 MB, fits
    into a request of 3 MiB together with its new status. As ASCII, a character would take up to three times as much.
    """
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


async def _read(answer: aiohttp.ClientResponse, largest: int | None) -> bytes:
    text = bytearray()
    async for part in answer.content.iter_any():
        text += part
        if largest is not None and len(text) > largest:
            raise _TooLarge
    return bytes(text)


def _parse(text: bytes) -> Manifest:
    """The answer as an object. Some refusals are plain text: for an unknown API group it is "404 page not found"."""
    try:
        document = json.loads(text or b"{}")
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document
    return {"message": text.decode(errors="replace").strip()[:_LONGEST_MESSAGE]}
