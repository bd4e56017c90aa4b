"""Requests to the API server: plain objects, one request per call, short timeouts, no cache.

The `kubernetes` package sends them. Its typed classes are not used: they lose fields that a newer API server has, and
take more memory. A refusal of the API server is an `ApiError` with the server's message. A request without an answer is
an `ApiUnavailable`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio import client

from tensafe_operator.runtime.api_errors import CONFLICT, NOT_FOUND, ApiError, ApiUnavailable, UnknownKind, error_of
from tensafe_operator.runtime.objects import RUNTIME_RESOURCES, Manifest, Resource

REQUEST_SECONDS = 10.0
CONNECTIONS = 8
"""How many requests of one client run concurrently. Each connection has a TLS buffer of 256 KiB."""
KIND_CACHE_SECONDS = 10.0
"""For how long a kind that existed is assumed to exist. If it was removed meanwhile, creating an object fails."""
PAGE_SIZE = 250
"""Objects in one answer to a list."""
MAX_EVENTS = 1000
"""How many of the Events about some objects are read."""
_LONGEST_MESSAGE = 512
NO_ANSWER = (TimeoutError, aiohttp.ClientError, OSError)
"""What a request raises that gets no answer."""
T = TypeVar("T")
"""What a caller keeps of an Event."""


@dataclass(frozen=True)
class Page:
    """A part of a list, and the resource version of the whole list."""

    items: list[Manifest]
    version: int


class Library(client.ApiClient):
    """The client of the `kubernetes` package, which reports each answer."""

    def __init__(
        self, connection: client.Configuration, user_agent: str, on_response: Callable[[str, int], None]
    ) -> None:
        super().__init__(connection)
        self.user_agent = user_agent
        self._on_response = on_response

    async def call_api(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Send a request and read the answer, also that to a refused request."""
        try:
            answer = await super().call_api(method, *arguments, **options)
            await answer.read()
        except NO_ANSWER:
            self._on_response(method, 0)
            raise
        self._on_response(method, answer.status)
        return answer


class ApiClient:
    """Requests of one operator. Close it after use.

    Args:
        connection: address and credentials of the API server.
        resources: where the API serves each kind, besides Events and Leases.
        field_manager: name of this client, as field manager and as user agent.
        on_response: called after each request with its method and HTTP status (0: no answer).
        may_write: called before each write. A process that is no longer the leader must not write.

    Attributes:
        library: sends the requests. Those that are sent by it directly may also write without `may_write`.
    """

    def __init__(
        self,
        connection: client.Configuration,
        resources: Mapping[str, Resource],
        field_manager: str,
        on_response: Callable[[str, int], None] = lambda method, status: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.library = Library(connection, field_manager, on_response)
        self._resources = {**RUNTIME_RESOURCES, **resources}
        self._field_manager = field_manager
        self._may_write = may_write
        self._known_until: dict[str, float] = {}
        self._free = asyncio.Semaphore(CONNECTIONS)

    async def close(self) -> None:
        await self.library.close()  # type: ignore[no-untyped-call]

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
            await self._request("GET", self._resources[kind].path(namespace), {"limit": "1"})
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
        query = {"limit": str(PAGE_SIZE), "labelSelector": selector, "fieldSelector": fields, "continue": ""}
        while True:
            given = {name: value for name, value in query.items() if value}
            try:
                found = await self._request("GET", self._resources[kind].path(namespace), given)
            except UnknownKind as error:
                raise self._not_served(kind) from error
            metadata = found["metadata"]
            common = {"apiVersion": found["apiVersion"], "kind": kind}  # items of built-in kinds lack these fields
            yield Page([{**common, **item} for item in found["items"]], int(metadata["resourceVersion"]))
            query["continue"] = metadata.get("continue") or ""
            if not query["continue"]:
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
        query = {"fieldManager": self._field_manager}
        if dry_run:
            query["dryRun"] = "All"
        if strict:
            query["fieldValidation"] = "Strict"
        return await self._request("POST", self._resources[kind].path(metadata["namespace"]), query, manifest)

    async def review(self, kind: str, spec: Mapping[str, Any]) -> Manifest:
        """Ask the API server by a review such as TokenReview, which it answers and does not store; return the answer's
        status.
        """
        resource = self._resources[kind]
        body = {"apiVersion": f"{resource.group}/{resource.version}", "kind": kind, "spec": spec}
        return dict((await self._request("POST", resource.path(None), body=body)).get("status") or {})

    async def apply(self, manifest: Manifest) -> Manifest:
        """Create an object or bring an existing one to `manifest`, by server-side apply. Fields of others are kept,
        except where `manifest` has the same field.
        """
        metadata = manifest["metadata"]
        path = self._resources[str(manifest["kind"])].path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": self._field_manager, "force": "true"}
        return await self._request("PATCH", path, query, manifest, "application/apply-patch+yaml")

    async def replace(self, document: Manifest) -> Manifest:
        """Replace a whole object; refused with CONFLICT if it has changed since `document` was read."""
        metadata = document["metadata"]
        path = self._resources[str(document["kind"])].path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, body=document)

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete the object with this UID (None: whichever has this name); its children are deleted after it. No error
        if it does not exist.
        """
        body = {"propagationPolicy": "Background", **({"preconditions": {"uid": uid}} if uid else {})}
        try:
            await self._request("DELETE", self._resources[kind].path(namespace, name), body=body)
        except ApiError as error:
            if error.status != NOT_FOUND and not (uid and error.status == CONFLICT):
                raise

    async def replace_status(self, document: Mapping[str, Any], status: Mapping[str, Any]) -> Manifest:
        """Replace the status of an object as a whole, unless the object has changed since `document` was read.

        By server-side apply, an entry of the status would stay after a user has reset `managedFields`.

        The spec is sent for one reason: the API server refuses it where the CRD lacks one of its fields. Otherwise this
        write would delete that field for good. The spec itself does not change with a status.

        Raises:
            UnknownFields: if the CRD does not know a field of the object or of the status.
        """
        metadata = document["metadata"]
        operations = [("/metadata/resourceVersion", metadata["resourceVersion"])]
        operations += [("/spec", document["spec"]), ("/status", status)]
        body = [{"op": "add", "path": path, "value": value} for path, value in operations]
        path = self._resources[str(document["kind"])].path(metadata["namespace"], metadata["name"], "status")
        query = {"fieldManager": self._field_manager, "fieldValidation": "Strict"}
        return await self._request("PATCH", path, query, body, "application/json-patch+json")

    def _not_served(self, kind: str) -> UnknownKind:
        return UnknownKind(NOT_FOUND, f"the API server does not serve {self._resources[kind].plural}")

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
        query: Mapping[str, str] = MappingProxyType({}),
        body: Any = None,
        content_type: str = "application/json",
    ) -> Manifest:
        async with self._free:  # its wait is not part of the time of the request
            return await self._send(method, path, query, body, content_type)

    async def _send(self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str) -> Manifest:
        if method != "GET" and not self._may_write():  # after the wait for a connection
            raise ApiUnavailable("this process may no longer be the leader, so it does not write")
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            _, url, headers, *_ = await self.library.param_serialize(
                method, path, query_params=dict(query), header_params=headers, auth_settings=["BearerToken"]
            )
            timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
            answer = await self.library.call_api(method, url, headers, body, _request_timeout=timeout)
        except NO_ANSWER as error:
            hangs = method != "GET" and isinstance(error, TimeoutError)
            hint = f" within {REQUEST_SECONDS:.0f} s: an admission webhook may not answer" if hangs else ""
            message = f"the API server does not answer ({type(error).__name__}){hint}"
            raise ApiUnavailable(message, webhook=hangs) from error
        document = _parse(answer.data)
        if answer.status >= 400:
            raise error_of(answer.status, document, str(document.get("message") or answer.reason))
        return document


def _parse(text: bytes) -> Manifest:
    """The answer as an object. Some refusals are plain text: for an unknown API group it is "404 page not found"."""
    try:
        document = json.loads(text or b"{}")
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document
    return {"message": text.decode(errors="replace").strip()[:_LONGEST_MESSAGE]}
