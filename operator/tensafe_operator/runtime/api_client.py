"""The API server, as the operator talks to it: plain objects, one request a call, short time-outs, no cache.

The typed clients would cost 90 MiB of memory for what a path and a mapping say as well. An answer that is no is an
`ApiError` with the server's own sentence; no answer at all is `ApiUnavailable`.

The requests go over a session of our own: the library's client looks for a proxy and for a password file at each one
and copies each body, which together took a quarter of the time of a request. Its configuration is used as it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client

from tensafe_api.resources.job import GROUP, VERSION
from tensafe_operator.children import Manifest

REQUEST_SECONDS = 10.0
KNOWN_SECONDS = 10.0
"""For so long a kind that was there is believed to be there still: without it, making an object fails and says so."""
FIELD_MANAGER = "tensafe-operator"
FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 403, 404, 409, 422
_TOO_MANY = 429
PAGE = 200
_LONGEST = 512


class ApiError(Exception):
    """The API server says no. `status` is the HTTP status, `str()` its sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiUnavailable(Exception):
    """The API server does not answer, or not now: the same request may go through in a moment."""


@dataclass(frozen=True)
class Resource:
    """Where objects of a kind live in the API."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{place}/{self.plural}" + "".join(f"/{part}" for part in (name, subresource) if part)


RESOURCES = {
    "TenSafeTrainingJob": Resource(GROUP, VERSION, "tensafetrainingjobs"),
    "PrivacyLedger": Resource(GROUP, VERSION, "privacyledgers"),
    "RayJob": Resource("ray.io", "v1", "rayjobs"),
    "Pod": Resource("", "v1", "pods"),
    "Event": Resource("", "v1", "events"),
    "ConfigMap": Resource("", "v1", "configmaps"),
    "Secret": Resource("", "v1", "secrets"),
    "ServiceAccount": Resource("", "v1", "serviceaccounts"),
    "RoleBinding": Resource("rbac.authorization.k8s.io", "v1", "rolebindings"),
    "NetworkPolicy": Resource("networking.k8s.io", "v1", "networkpolicies"),
    "Lease": Resource("coordination.k8s.io", "v1", "leases"),
}


@dataclass(frozen=True)
class Page:
    """A part of a list, and the version of the whole."""

    items: list[Manifest]
    version: int


class ApiClient:
    """Requests of one operator. Close it when done.

    Args:
        answered: told of each request's method and HTTP status, 0 where no answer came.
        may_write: asked before each write, since who no longer leads must not.
    """

    def __init__(
        self,
        http: client.ApiClient,
        answered: Callable[[str, int], None] = lambda method, status: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._http: Any = http  # untyped where it is used
        self._answered = answered
        self._may_write = may_write
        self._session: aiohttp.ClientSession | None = None
        self._proxy = http.configuration.proxy or _proxy(http.configuration.host)
        self._known: dict[str, float] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._http.close()

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, or None where there is none."""
        try:
            return await self._request("GET", RESOURCES[kind].path(namespace, name))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def find(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        """All objects of a kind with these labels; none where the cluster does not know the kind."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        query = urlencode({"labelSelector": selector})
        try:
            found = await self._request("GET", f"{RESOURCES[kind].path(namespace)}?{query}")
        except ApiError as error:
            if error.status == NOT_FOUND:
                return []
            raise
        return list(found["items"])

    async def pages(self, kind: str, namespace: str | None, selector: str = "") -> AsyncIterator[Page]:
        """All objects of a kind (in one namespace, or in all of them), a page at a time; one empty page, of version 0,
        where the cluster does not know the kind.
        """
        token = ""
        while True:
            asked = {"limit": str(PAGE), "labelSelector": selector, "continue": token}
            query = urlencode({name: value for name, value in asked.items() if value})
            try:
                found = await self._request("GET", f"{RESOURCES[kind].path(namespace)}?{query}")
            except ApiError as error:
                if error.status == NOT_FOUND:
                    yield Page([], 0)
                    return
                raise
            metadata = found["metadata"]
            common = {"apiVersion": found["apiVersion"], "kind": kind}  # items of built-in kinds do not say theirs
            yield Page([{**common, **item} for item in found["items"]], int(metadata["resourceVersion"]))
            token = metadata.get("continue") or ""
            if not token:
                return

    async def events(self, namespace: str, **about: str) -> list[Manifest]:
        """What the cluster warned of about one object, given by fields of `involvedObject` such as its uid."""
        told = ",".join(f"involvedObject.{field}={value}" for field, value in about.items())
        query = urlencode({"fieldSelector": f"{told},type=Warning"})
        found = await self._request("GET", f"{RESOURCES['Event'].path(namespace)}?{query}")
        return list(found["items"])

    async def knows(self, kind: str) -> bool:
        """Whether the cluster knows a kind now, or knew it a moment ago."""
        if time.monotonic() < self._known.get(kind, 0.0):
            return True
        resource = RESOURCES[kind]
        try:
            found = await self._request("GET", f"/apis/{resource.group}/{resource.version}")
        except ApiError as error:
            if error.status == NOT_FOUND:
                return False
            raise
        there = any(each["name"] == resource.plural for each in found["resources"])
        if there:
            self._known[kind] = time.monotonic() + KNOWN_SECONDS
        return there

    async def create(self, manifest: Manifest) -> Manifest:
        kind, metadata = str(manifest["kind"]), manifest["metadata"]
        path = f"{RESOURCES[kind].path(metadata['namespace'])}?fieldManager={FIELD_MANAGER}"
        return await self._request("POST", path, manifest)

    async def replace(self, document: Manifest) -> Manifest:
        """Write a whole object under the version that it was read at."""
        metadata = document["metadata"]
        path = RESOURCES[str(document["kind"])].path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, document)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Remove this very object, and what it owns after it; nothing where it is gone already."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._request("DELETE", RESOURCES[kind].path(namespace, name), body)
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    async def apply_status(self, job: Mapping[str, Any], status: Mapping[str, Any]) -> Manifest:
        """Let the job's status say this, by server-side apply, unless the job has changed since it was seen."""
        metadata = job["metadata"]
        body = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "status": status,
        }
        path = RESOURCES["TenSafeTrainingJob"].path(metadata["namespace"], metadata["name"], "status")
        query = urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})
        return await self._request("PATCH", f"{path}?{query}", body, "application/apply-patch+yaml")

    async def _request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Manifest:
        if method != "GET" and not self._may_write():
            raise ApiUnavailable("another operator may be leading by now")
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        configuration = self._http.configuration
        if token := await configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        data = None if body is None else json.dumps(body)
        try:
            async with self._connected().request(
                method, configuration.host + path, data=data, headers=headers, proxy=self._proxy
            ) as answer:
                text = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._answered(method, 0)
            raise ApiUnavailable(f"the API server does not answer ({type(error).__name__})") from error
        self._answered(method, answer.status)
        document = _document(text)
        if answer.status == _TOO_MANY or answer.status >= 500:
            raise ApiUnavailable(f"the API server asks for patience ({document.get('message') or answer.reason})")
        if answer.status >= 400:
            raise ApiError(answer.status, str(document.get("message") or answer.reason))
        return document

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:  # only now is there surely a loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._http.rest_client.ssl_context),
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
                headers={"User-Agent": FIELD_MANAGER},
            )
        return self._session


def _proxy(host: str) -> str | None:
    """The proxy that the environment names for this server."""
    found = urlsplit(host)
    if not found.hostname or proxy_bypass(found.hostname):
        return None
    return getproxies().get(found.scheme)


def _document(text: bytes) -> Manifest:
    """The answer as an object. Not every refusal is one: for a group that it does not know, the API server says
    "404 page not found".
    """
    try:
        document = json.loads(text or b"{}")
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"message": text.decode(errors="replace").strip()[:_LONGEST]}
