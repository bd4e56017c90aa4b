"""Plain types for API objects, and what the runtime must know about the kinds of objects of one operator.

The operator reconciles one kind (the *parent*). It watches the parents and their *children*. A child names its parent
by UID, in an owner reference, a label or a field: `Kinds.parent_uid` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Manifest = dict[str, Any]
"""An API object as JSON."""
Key = tuple[str, str]
"""Namespace and name of a parent."""


@dataclass(frozen=True)
class Resource:
    """Where the API serves the objects of a kind. The core group is the empty string."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """The URL path of an object, or of the whole collection if `name` is empty. None: all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{scope}/{self.plural}" + "".join(f"/{part}" for part in (name, subresource) if part)


RUNTIME_RESOURCES = MappingProxyType(
    {
        "Event": Resource("", "v1", "events"),
        "Lease": Resource("coordination.k8s.io", "v1", "leases"),
        "TokenReview": Resource("authentication.k8s.io", "v1", "tokenreviews"),
        "SubjectAccessReview": Resource("authorization.k8s.io", "v1", "subjectaccessreviews"),
    }
)
"""What the runtime itself reads and writes."""


def _unchanged(kind: str, body: Mapping[str, Any]) -> Manifest:
    return dict(body)


def _no_other(kind: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
    return None


@dataclass(frozen=True)
class Kinds:
    """The kinds of objects of one operator.

    Attributes:
        resources: where the API serves each kind that the operator reads or writes.
        parent: the kind that is reconciled.
        children: the kinds that belong to a parent.
        parent_uid: returns the UID of the parent of an object of a kind (for a parent: its own UID); empty if the
            object belongs to no parent.
        warned_kinds: the children whose warning Events are kept.
        warning_source: returns kind and name of another object whose warnings count as this object's, or None. Such an
            object is not watched: for example, one that another controller creates for the child.
        installed_later: the kinds whose CRD may be installed after the operator has started.
        selectors: label selector by kind; only matching objects are listed and watched.
        trim: returns the part of an object that the cache keeps.
    """

    resources: Mapping[str, Resource]
    parent: str
    children: tuple[str, ...]
    parent_uid: Callable[[str, Mapping[str, Any]], str]
    warned_kinds: frozenset[str] = frozenset()
    warning_source: Callable[[str, Mapping[str, Any]], tuple[str, str] | None] = _no_other
    installed_later: frozenset[str] = frozenset()
    selectors: Mapping[str, str] = field(default_factory=dict)
    trim: Callable[[str, Mapping[str, Any]], Manifest] = _unchanged

    @property
    def watched(self) -> tuple[str, ...]:
        """Children first, so that a parent that is listed is complete when it arrives."""
        return (*self.children, self.parent)
