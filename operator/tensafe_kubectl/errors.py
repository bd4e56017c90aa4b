"""Exit codes of `kubectl tensafe`, the error that ends a verb, and the two ways in which a request fails.

`describe_refusal` turns a refusal of the API server into a sentence that names what the caller lacks, and the fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tensafe_api.resources.job import GROUP
from tensafe_operator.runtime.objects import Resource

SUCCEEDED = 0
FAILED = 1
"""The job failed, or it does not exist, or the cluster refuses the request or does not answer."""
INVALID = 2
"""The arguments, the kubeconfig or the manifest are invalid: nothing was sent."""
EXHAUSTED = 3
"""`run` and `status --watch`: the budget ended before the planned steps. The adapter can be used."""
SUSPENDED = 4
"""`run` and `status --watch`: the job is suspended, so its end would not come."""
INTERRUPTED = 130
"""Ctrl-C. A job continues."""

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE, INVALID_OBJECT, TOO_MANY = 401, 403, 404, 409, 410, 422, 429
_READS = ("get", "list", "watch")
_CLUSTER_WIDE = "ClusterRoleBinding"
_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
)
"""How RBAC refuses a request."""
_INSTALL = "helm upgrade --install tensafe charts/tensafe, or kubectl apply -f crds/"


class CommandError(Exception):
    """The verb cannot do what was asked. `str()` is a sentence, with its fix. It is printed as one line, because a
    stranger may have written texts in it, which could imitate other lines.

    Attributes:
        faults: printed as a line each, in the place of the message, where there are several.
    """

    def __init__(self, message: str, exit_code: int = FAILED, faults: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.faults = tuple(faults) or (message,)


class Unreachable(Exception):
    """The API server does not answer. `str()` is the cause in a few words; `server` is its address."""

    def __init__(self, cause: str, server: str) -> None:
        super().__init__(cause)
        self.server = server


@dataclass(frozen=True)
class Request:
    """What was asked of the API server, in the terms of RBAC.

    Attributes:
        verb: get, list, watch, patch.
        namespace: None: all namespaces, or a resource without them.
        name: empty for a list.
    """

    verb: str
    resource: Resource
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def what(self) -> str:
        """The resource as RBAC names it, such as tensafetrainingjobs.tensafe.io or pods/log."""
        group = f".{self.resource.group}" if self.resource.group else ""
        return self.resource.plural + (f"/{self.subresource}" if self.subresource else "") + group

    @property
    def where(self) -> str:
        return f"in the namespace {self.namespace}" if self.namespace else "in all namespaces"


class Refused(Exception):
    """The API server refuses a request. `str()` is the server's message.

    Attributes:
        missing_api: the server does not know the resource at all; False for a missing object.
    """

    def __init__(self, request: Request, status: int, message: str, *, missing_api: bool = False) -> None:
        super().__init__(message)
        self.request, self.status, self.missing_api = request, status, missing_api


def describe_refusal(refused: Refused) -> str:
    """One sentence on what was refused and why, with the fix."""
    request = refused.request
    if refused.missing_api:
        if request.resource.group == GROUP:
            return f"TenSafe's CRDs are not installed in this cluster, or not served: an administrator runs {_INSTALL}"
        return f"the cluster does not know {request.what}: {refused}"
    match refused.status:
        case 401:
            return (
                "the API server does not accept your credentials: log in to the cluster again, and check with "
                "`kubectl auth whoami`"
            )
        case 403:
            return missing_right(refused)
        case 404:
            return f"{request.what} {request.name} does not exist {request.where}"
        case 409:
            return f"the API server refuses to change {request.what} {request.name}: {refused}"
    return f"the API server refuses to {request.verb} {request.what} {request.name} (HTTP {refused.status}): {refused}"


def missing_right(refused: Refused) -> str:
    """The right that the caller lacks, and who gives it. Another refusal than one of RBAC is repeated as it is."""
    denied = _DENIED.search(str(refused))
    if denied is None:
        return f"the API server forbids it: {refused}"
    verb, resource = denied["verb"], denied["resource"] + (f".{denied['group']}" if denied["group"] else "")
    where = refused.request.where
    role, scope = ("view" if verb in _READS else "edit"), "RoleBinding" if refused.request.namespace else _CLUSTER_WIDE
    # The roles of Kubernetes do not reach the kinds of KubeRay and Kueue.
    has_role = denied["group"] in ("", GROUP)
    asked = f"a {scope} to the ClusterRole {role}, or for " if has_role else ""
    return (
        f"you ({denied['user']}) may not {verb} {resource} {where}: ask an administrator for {asked}the verb "
        f'"{verb}" on {resource}'
    )
