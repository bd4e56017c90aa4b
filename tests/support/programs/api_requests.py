"""Single requests to the API server, for tests: plain JSON objects come in and go out.

A kubectl for each request takes a tenth of a second of CPU time. Tests of what kubectl prints or converts start the
real one (`ControlPlane.kubectl`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import urllib3

from tensafe_operator.runtime.objects import Resource
from tests.support.programs.api_server import MERGE_PATCH, Object, RequestRejected, credentials
from tests.support.programs.api_server import RESOURCES as OF_FAKES

RESOURCES = {
    **OF_FAKES,
    "ResourceQuota": Resource("", "v1", "resourcequotas"),
    "Role": Resource("rbac.authorization.k8s.io", "v1", "roles"),
}


class ApiRequests:
    """Requests with the credentials of a kubeconfig. A request that is not answered is not sent again."""

    def __init__(self, kubeconfig: Path) -> None:
        self._url, context, headers = credentials(kubeconfig)
        self._pool = urllib3.PoolManager(ssl_context=context, headers=headers, retries=False)

    def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Object:
        """Send one request; return the answer.

        Raises:
            RequestRejected: the server answered with an error.
            urllib3.exceptions.HTTPError: it did not answer.
        """
        headers = {**self._pool.headers, "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        answer = self._pool.request(method, self._url + path, body=data, headers=headers)
        document: Object = json.loads(answer.data)
        if answer.status >= 400:
            raise RequestRejected(f"{method} {path}: {answer.status} {document.get('message')}")
        return document

    def find(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """An object, or None where the server does not give it."""
        try:
            return self.send("GET", RESOURCES[kind].path(namespace, name))
        except (RequestRejected, urllib3.exceptions.HTTPError):
            return None

    def create(self, document: Object, query: str = "") -> Object:
        """Create an object in the namespace that it names; return it. `query`: such as "?dryRun=All"."""
        path = RESOURCES[document["kind"]].path(document["metadata"].get("namespace"))
        return self.send("POST", path + query, document)

    def token(self, namespace: str, account: str, bound_to: Object | None = None) -> str:
        """A new token of a service account, bound to an object if one is given."""
        path = RESOURCES["ServiceAccount"].path(namespace, account, "token")
        spec = {"boundObjectRef": bound_to} if bound_to else {}
        return str(self.send("POST", path, {"spec": spec})["status"]["token"])

    def apply(self, document: Object, query: str = "") -> Object:
        """Create an object, or replace the spec of the one that exists; return it."""
        metadata = document["metadata"]
        if self.find(document["kind"], metadata.get("namespace"), metadata["name"]) is None:
            return self.create(document, query)
        path = RESOURCES[document["kind"]].path(metadata.get("namespace"), metadata["name"])
        spec = [{"op": "replace", "path": "/spec", "value": document["spec"]}]
        return self.send("PATCH", path + query, spec, "application/json-patch+json")

    def replace(self, document: Object, subresource: str = "") -> Object:
        """Replace an object, or a subresource of it, such as its status."""
        metadata = document["metadata"]
        path = RESOURCES[document["kind"]].path(metadata.get("namespace"), metadata["name"], subresource)
        return self.send("PUT", path, document)

    def patch(self, kind: str, namespace: str | None, name: str, body: Object, subresource: str = "") -> Object:
        """Merge fields into an object, or into a subresource of it."""
        return self.send("PATCH", RESOURCES[kind].path(namespace, name, subresource), body, MERGE_PATCH)
