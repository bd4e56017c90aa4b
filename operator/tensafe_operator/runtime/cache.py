"""The newest known body of each watched object, grouped by the parent that it belongs to.

A child names its parent by UID, in a label or an owner reference that users may write. The UID of a parent is no
secret, so an object counts as a child only in the namespace of its parent.

`watch` and `resync` put objects in; `snapshot` returns a parent with all its children. A body may arrive late, twice or
not at all. The cache can therefore be behind the API server, and an irreversible decision must not rest on it alone.

Bodies are trimmed (`Kinds.trim`) and kept as JSON text: dictionaries would take eight times the memory or more, and
escapes for letters beyond ASCII up to three times.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tensafe_operator.runtime.objects import Key, Kinds, Manifest

W = TypeVar("W")
"""A warning, in the form that the caller wants to have it back."""
Family = tuple[str, str]
"""A parent and its children: their namespace, and the UID of the parent."""


@dataclass(frozen=True)
class Snapshot(Generic[W]):
    """A parent, its children by kind, and for each child the last warning of each topic, the newest first."""

    parent: Manifest
    children: Mapping[str, tuple[Manifest, ...]]
    warnings: tuple[W, ...]


class Cache(Generic[W]):
    """Parents by key, and children by their namespace and the UID of their parent."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._parents: dict[Key, tuple[str, bytes]] = {}
        """UID of the parent, and its body."""
        self._children: dict[str, dict[Family, dict[str, bytes]]] = {kind: defaultdict(dict) for kind in kinds.children}
        """Kind → family → UID of the child → its body."""
        self._keys: dict[Family, Key] = {}
        """Family → key of its parent, if that is known."""
        self._families: dict[str, Family] = {}
        """UID of a child → its family. A user may give a child another parent."""
        self._versions: dict[str, int] = {}
        """UID of an object → its resource version, which grows."""
        self._warning_sources: dict[tuple[str, str, str], str] = {}
        """Namespace, kind and name of an object that is not watched → UID of the child that its warnings count for."""
        self._sources: dict[str, tuple[str, str, str]] = {}
        """UID of a child → the object of which it gets the warnings, the last that it named."""
        self._warnings: dict[str, dict[tuple[str, str], W]] = defaultdict(dict)
        """UID of a child → kind of the object and topic → the last such warning, the newest at the end."""
        self._keeps_orphans = True

    def put(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        """Keep an object.

        Returns:
            The key of its parent, or None if no known parent is affected or the body is not newer than the known one.
        """
        return self._put_parent(body) if kind == self._kinds.parent else self._put_child(kind, body)

    def learn(self, document: Mapping[str, Any]) -> None:
        """Keep what the API server returned for a write. The later watch event of this write then counts as known."""
        kind = str(document["kind"])
        if kind not in self._kinds.watched:
            return
        if (_namespace(document), self._kinds.parent_uid(kind, document)) not in self._keys:
            return  # the parent was deleted meanwhile
        self.put(kind, document)

    def drop(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        """Forget a deleted object.

        Returns:
            The key of the parent that is affected, or None if no known parent is affected.
        """
        if kind == self._kinds.parent:
            return self._drop_parent(body)
        uid = body["metadata"]["uid"]
        family = self._families.get(uid) or self._family_of(kind, body)
        self._children[kind].get(family, {}).pop(uid, None)
        self._forget_child(uid)
        return self._keys.get(family)

    def keep_only(self, kind: str, listed: Collection[str], version: int, namespace: str | None) -> None:
        """Forget the objects of a kind that a list does not contain, unless they are newer than the list.

        Args:
            listed: UIDs of the objects in the list.
            version: resource version of the list.
            namespace: namespace of the list; None: all namespaces.
        """
        if kind == self._kinds.parent:
            kept = [(uid, body) for uid, body in self._parents.values()]
        else:
            kept = [each for children in self._children[kind].values() for each in children.items()]
        for uid, text in kept:
            if uid in listed or self._versions.get(uid, 0) > version:
                continue
            body = json.loads(text)
            if namespace in (None, body["metadata"]["namespace"]):
                self.drop(kind, body)

    def keep_orphans(self) -> None:
        """From now on, keep children whose parent is not known: a list of the parents follows."""
        self._keeps_orphans = True

    def drop_orphans(self) -> None:
        """Forget the children of parents that are not known, and from now on keep no others.

        A child can outlive its parent, such as the record of a job that was deleted. Nothing is ever decided for it.
        """
        self._keeps_orphans = False
        for children in self._children.values():
            for parent in children.keys() - self._keys.keys():
                for child in children.pop(parent):
                    self._forget_child(child)

    def warn(self, namespace: str, kind: str, name: str, uid: str, topic: str, warning: W) -> Key | None:
        """Keep the last warning of a topic about an object; the key of the parent that it concerns, if any.

        Args:
            namespace: that of the warning, in which the object must be.
        """
        uid = self._warned_child(namespace, kind, name, uid)
        if not uid:
            return None
        kept = self._warnings[uid]
        kept.pop((kind, topic), None)
        kept[kind, topic] = warning
        return self._keys.get(self._families[uid])

    def forget_warning(self, namespace: str, kind: str, name: str, uid: str, topic: str, warning: W) -> Key | None:
        """Forget a warning that the API server no longer has, unless a newer one has replaced it; the key of the parent
        that it concerns, if any.
        """
        uid = self._warned_child(namespace, kind, name, uid)
        kept = self._warnings.get(uid, {})
        if kept.get((kind, topic)) != warning:
            return None
        del kept[kind, topic]
        return self._keys.get(self._families[uid])

    def known_keys(self) -> list[Key]:
        """The keys of all known parents."""
        return list(self._parents)

    def parent(self, key: Key) -> Manifest | None:
        """A parent without its children, or None if it is unknown."""
        return json.loads(self._parents[key][1]) if key in self._parents else None

    def snapshot(self, key: Key) -> Snapshot[W] | None:
        """A parent with its children, or None if it is unknown."""
        parent = self.parent(key)
        if parent is None:
            return None
        family = (key[0], parent["metadata"]["uid"])
        children = {
            kind: tuple(map(json.loads, families.get(family, {}).values())) for kind, families in self._children.items()
        }
        uids = [
            each["metadata"]["uid"] for kind in children if kind in self._kinds.warned_kinds for each in children[kind]
        ]
        kept = (self._warnings.get(each, {}).values() for each in uids)
        return Snapshot(parent, children, tuple(warning for each in kept for warning in reversed(each)))

    def _put_parent(self, body: Mapping[str, Any]) -> Key | None:
        metadata = body["metadata"]
        key, uid = (str(metadata["namespace"]), str(metadata["name"])), str(metadata["uid"])
        if not self._is_newer(uid, body):
            return None
        self._parents[key] = (uid, self._kept(self._kinds.parent, body))
        self._keys[key[0], uid] = key
        return key

    def _put_child(self, kind: str, body: Mapping[str, Any]) -> Key | None:
        uid = body["metadata"]["uid"]
        family, before = self._family_of(kind, body), self._families.get(uid)
        belongs = bool(family[1]) and (self._keeps_orphans or family in self._keys)
        if not (belongs or before) or not self._is_newer(uid, body):
            return None
        if before and before != family:
            self._children[kind].get(before, {}).pop(uid, None)
            self._warnings.pop(uid, None)
            self._forget_source(uid)
            del self._families[uid]
        if belongs:
            self._children[kind][family][uid] = self._kept(kind, body)
            self._families[uid] = family
            if (other := self._kinds.warning_source(kind, body)) is not None:
                self._forget_source(uid)
                self._sources[uid] = source = (_namespace(body), *other)
                self._warning_sources[source] = uid
        return self._keys.get(before or family)

    def _drop_parent(self, body: Mapping[str, Any]) -> Key | None:
        metadata = body["metadata"]
        key, uid = (str(metadata["namespace"]), str(metadata["name"])), metadata["uid"]
        if key in self._parents and self._parents[key][0] == uid:
            del self._parents[key]
        self._versions.pop(uid, None)
        for children in self._children.values():
            for child in children.pop((key[0], uid), {}):
                self._forget_child(child)
        return self._keys.pop((key[0], uid), None)

    def _warned_child(self, namespace: str, kind: str, name: str, uid: str) -> str:
        """The UID of the child that warnings about an object count for; empty if there is none in the namespace."""
        uid = self._warning_sources.get((namespace, kind, name), uid)
        family = self._families.get(uid, ("", ""))
        warned = any(uid in self._children[each].get(family, {}) for each in self._kinds.warned_kinds)
        return uid if warned and family[0] == namespace else ""

    def _forget_source(self, uid: str) -> None:
        source = self._sources.pop(uid, None)
        if source is not None and self._warning_sources.get(source) == uid:
            del self._warning_sources[source]

    def _forget_child(self, uid: str) -> None:
        self._warnings.pop(uid, None)
        self._forget_source(uid)
        self._families.pop(uid, None)
        self._versions.pop(uid, None)

    def _family_of(self, kind: str, body: Mapping[str, Any]) -> Family:
        """The family that a child names. It is that of an earlier body if it names none: labels can be removed."""
        if parent := self._kinds.parent_uid(kind, body):
            return _namespace(body), parent
        return self._families.get(body["metadata"]["uid"], (_namespace(body), ""))

    def _is_newer(self, uid: str, body: Mapping[str, Any]) -> bool:
        """Whether this body is newer than the known one. Lists, watch events and answers to writes arrive in any
        order.
        """
        version = int(body["metadata"].get("resourceVersion") or 0)
        if version <= self._versions.get(uid, -1):
            return False
        self._versions[uid] = version
        return True

    def _kept(self, kind: str, body: Mapping[str, Any]) -> bytes:
        text = json.dumps(self._kinds.trim(kind, body), separators=(",", ":"), ensure_ascii=False)
        return text.encode(errors="surrogatepass")  # as `json.loads` decodes it


def _namespace(body: Mapping[str, Any]) -> str:
    return str(body["metadata"]["namespace"])
