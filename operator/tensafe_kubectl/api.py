"""Requests to the API server with the caller's credentials: plain objects in and out, watches, and logs.

The `kubernetes` package has no typed classes for custom resources, and its watch does not report why a connection
broke. So only its configuration (address, TLS, tokens and their refresh) and its connection pool are used.

A refusal raises `Refused`, a missing answer `Unreachable`. Nothing is retried here: `watching` reconnects a watch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import urllib3

from tensafe_kubectl.errors import Refused, Request, Unreachable
from tensafe_operator.runtime.objects import Resource

Object = dict[str, Any]
"""An API object as JSON."""
FIELD_MANAGER = "kubectl-tensafe"
CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
WATCH_SECONDS = 60
"""The server ends a watch after this time, and it is opened again. So a dead connection is noticed soon after it."""
LONGEST_LINE = 1 << 20
"""Bytes of a line of a log. A pod may write a log without an end of line, which would fill the memory."""
_WATCH_MARGIN = 15.0
_PAGE = 500
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"


class Api:
    """The API server, and the namespace that is used where the caller names none.

    Args:
        http: the library's client.
        headers: more headers for each request.
    """

    def __init__(self, http: Any, namespace: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        self._configuration = http.configuration
        self._pool = http.rest_client.pool_manager
        self._headers = list(headers)
        self.namespace = namespace
        self.server: str = http.configuration.host

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """The object. Raises Refused (404) if it does not exist."""
        return self._json("GET", Request("get", resource, namespace, name))

    def list(self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = "") -> list[Object]:
        """All objects in a namespace, or in all namespaces (None), that the selectors match."""
        found: list[Object] = []
        token = ""
        while True:
            query = {"limit": str(_PAGE), "labelSelector": labels, "fieldSelector": fields, "continue": token}
            page = self._json("GET", Request("list", resource, namespace), query)
            found += page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return found

    def list_one(self, resource: Resource, namespace: str, name: str) -> tuple[Object | None, str]:
        """One object, or None if it does not exist, and the version from which its next changes can be watched."""
        query = {"fieldSelector": f"metadata.name={name}"}
        found = self._json("GET", Request("list", resource, namespace), query)
        return next(iter(found.get("items") or ()), None), str(found["metadata"]["resourceVersion"])

    def merge(self, resource: Resource, namespace: str, name: str, changes: Object) -> Object:
        """Change some fields of an object by a merge patch."""
        request = Request("patch", resource, namespace, name)
        return self._json("PATCH", request, {"fieldManager": FIELD_MANAGER}, changes, _MERGE_PATCH)

    def apply(self, resource: Resource, namespace: str, name: str, document: Object) -> Object:
        """Create an object or change it, by server-side apply without force: a field of another manager is refused."""
        request = Request("patch", resource, namespace, name)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return self._json("PATCH", request, query, document, _APPLY_PATCH)

    def watch(self, resource: Resource, namespace: str, name: str, version: str) -> Iterator[tuple[str, Object]]:
        """The changes of one object after a resource version, until the server ends the watch.

        Raises:
            Unreachable: the connection broke.
            Refused: with status 410 if the version is too old.
        """
        request = Request("watch", resource, namespace)
        query = {
            "watch": "1",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        for line in self._lines(request, query, WATCH_SECONDS + _WATCH_MARGIN):
            event = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise Refused(request, int(status.get("code") or 0), str(status.get("message")))
            yield event["type"], event["object"]

    def log(self, pods: Resource, namespace: str, pod: str, options: Mapping[str, str]) -> Iterator[bytes]:
        """The lines of a container's log, as the API server sends them. options: those of pods/log.

        A line of more than `LONGEST_LINE` bytes comes in several parts, each as a line.
        """
        request = Request("get", pods, namespace, pod, "log")
        return self._lines(request, options, None if "follow" in options else READ_SECONDS, LONGEST_LINE)

    def _json(
        self,
        method: str,
        request: Request,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "",
    ) -> Object:
        with self._send(method, request, query or {}, READ_SECONDS, body, content_type) as answer:
            document: Object = json.loads(answer.data)
            return document

    def _lines(
        self, request: Request, query: Mapping[str, str], read_seconds: float | None, longest: int | None = None
    ) -> Iterator[bytes]:
        with self._send("GET", request, query, read_seconds) as answer:
            yield from split_lines(answer.stream(65536), longest)

    @contextmanager
    def _send(
        self,
        method: str,
        request: Request,
        query: Mapping[str, str],
        read_seconds: float | None,
        body: Object | None = None,
        content_type: str = "",
    ) -> Iterator[Any]:
        """Send a request, and yield the answer of a server that has accepted it."""
        path = request.resource.path(request.namespace, request.name, request.subresource)
        given = urlencode({name: value for name, value in query.items() if value})
        answer = None
        try:
            answer = self._pool.request(
                method,
                f"{self.server}{path}" + (f"?{given}" if given else ""),
                body=None if body is None else json.dumps(body).encode(),
                headers=self._all_headers(content_type),
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds),
                retries=False,
                preload_content=False,
            )
            if answer.status >= 400:
                raise _refusal(request, answer)
            yield answer
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(_cause(error), self.server) from error
        finally:
            if answer is not None:
                answer.close()

    def _all_headers(self, content_type: str) -> Any:
        headers = urllib3.HTTPHeaderDict({"Accept": "application/json, */*", "User-Agent": FIELD_MANAGER})
        for name, value in self._headers:
            headers.add(name, value)
        if content_type:
            headers["Content-Type"] = content_type
        if bearer := self._configuration.auth_settings().get("BearerToken"):
            headers["Authorization"] = bearer["value"]
        return headers


def split_lines(chunks: Iterable[bytes], longest: int | None = None) -> Iterator[bytes]:
    """The lines in a stream of bytes, without their ends, in time that is linear in its length.

    Args:
        longest: a line of more bytes is cut into several; None: lines of any length.
    """
    line = bytearray()
    for chunk in chunks:
        for number, part in enumerate(chunk.split(b"\n")):
            if number:
                yield bytes(line)
                line.clear()
            line += part
            while longest is not None and len(line) > longest:
                yield bytes(line[:longest])
                del line[:longest]
    if line:
        yield bytes(line)


def _refusal(request: Request, answer: Any) -> Refused:
    """The refusal in an answer. The server answers in plain text where it does not know the resource."""
    text = answer.data.decode(errors="replace").strip()
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    if isinstance(status, dict) and "message" in status:
        return Refused(request, answer.status, str(status["message"]))
    return Refused(request, answer.status, text[:512], missing_api=answer.status == 404)


def _cause(error: Exception) -> str:
    """Why a request has no answer, in a few words."""
    text = str(error.args[-1] if error.args else error) or type(error).__name__
    return text.rsplit(">: ", 1)[-1].removeprefix("Failed to establish a new connection: ")
