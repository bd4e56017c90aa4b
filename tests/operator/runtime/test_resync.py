"""A resync lists every watched kind into the cache, children first, and drops what no list contains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tensafe_operator.runtime.api_client import Page
from tensafe_operator.runtime.cache import Cache
from tensafe_operator.runtime.objects import Kinds, Manifest
from tensafe_operator.runtime.resync import resync


def parent_uid(kind: str, body: Any) -> str:
    return str(body["metadata"]["uid"] if kind == "Parent" else body["metadata"]["labels"]["parent"])


KINDS = Kinds(resources={}, parent="Parent", children=("Child",), parent_uid=parent_uid, selectors={"Child": "parent"})


def labelled(name: str, version: int, **labels: str) -> Manifest:
    metadata = {"name": name, "namespace": "clinic", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels}}


class ListingApi:
    """Serves the given objects, one per page, and records the lists."""

    def __init__(self, objects: dict[str, list[Manifest]], version: int) -> None:
        self.objects, self.version = objects, version
        self.lists: list[tuple[str, str | None, str]] = []

    async def pages(self, kind: str, namespace: str | None, selector: str = "") -> AsyncIterator[Page]:
        self.lists.append((kind, namespace, selector))
        yield Page([], self.version)
        for body in self.objects[kind]:
            yield Page([body], self.version)


def test_all_kinds_are_listed_children_first_with_their_selectors() -> None:
    api: Any = ListingApi({"Parent": [labelled("one", 3)], "Child": [labelled("a", 4, parent="uid-one")]}, 10)
    cache = Cache[str](KINDS)
    asyncio.run(resync(api, cache, KINDS, ("clinic",)))
    assert api.lists == [("Child", "clinic", "parent"), ("Parent", "clinic", "")]
    snapshot = cache.snapshot(("clinic", "one"))
    assert snapshot is not None and len(snapshot.children["Child"]) == 1


def test_no_namespaces_means_all_namespaces() -> None:
    api: Any = ListingApi({"Parent": [], "Child": []}, 10)
    asyncio.run(resync(api, Cache[str](KINDS), KINDS, ()))
    assert api.lists == [("Child", None, "parent"), ("Parent", None, "")]


def test_deletion_that_no_event_reported_is_found() -> None:
    cache = Cache[str](KINDS)
    cache.put("Parent", labelled("deleted", 3))
    cache.put("Parent", labelled("created-after-the-list", 12))
    api: Any = ListingApi({"Parent": [], "Child": []}, 10)
    asyncio.run(resync(api, cache, KINDS, ()))
    assert cache.known_keys() == [("clinic", "created-after-the-list")]


def test_child_of_a_parent_that_no_list_contains_is_forgotten_and_returns_with_its_parent() -> None:
    cache = Cache[str](KINDS)
    api: Any = ListingApi({"Parent": [], "Child": [labelled("a", 4, parent="uid-one")]}, 10)
    asyncio.run(resync(api, cache, KINDS, ()))
    cache.put("Parent", labelled("one", 11))
    snapshot = cache.snapshot(("clinic", "one"))
    assert snapshot is not None and snapshot.children["Child"] == ()
    api.objects["Parent"] = [labelled("one", 11)]
    asyncio.run(resync(api, cache, KINDS, ()))
    snapshot = cache.snapshot(("clinic", "one"))
    assert snapshot is not None and len(snapshot.children["Child"]) == 1
