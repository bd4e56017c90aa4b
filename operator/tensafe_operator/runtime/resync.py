"""Lists all watched objects into the cache: before the first reconcile, and periodically after it.

An operator that has just started must not take an object for deleted because no watch event has reported it yet. A
watch stream can also miss a deletion, while it is broken or between its own list and this one. An object that is not in
the list and not newer than the list is therefore dropped from the cache.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import UnknownKind
from tensafe_operator.runtime.cache import Cache
from tensafe_operator.runtime.objects import Kinds

W = TypeVar("W")


async def resync(api: ApiClient, cache: Cache[W], kinds: Kinds, namespaces: Collection[str]) -> None:
    """Bring the cache up to date with all watched objects. An empty `namespaces` means all namespaces.

    Children are listed before parents: a parent in the cache then has all children that it had. Children without a
    parent in the lists are forgotten.

    Raises:
        ApiUnavailable, ApiError: if the API server does not answer or refuses a list.
    """
    cache.keep_orphans()
    for kind in kinds.watched:
        for namespace in namespaces or (None,):
            listed: set[str] = set()
            version = 0
            try:
                async for page in api.pages(kind, namespace, kinds.selectors.get(kind, "")):
                    for body in page.items:
                        listed.add(body["metadata"]["uid"])
                        cache.put(kind, body)
                    version = page.version
            except UnknownKind:
                version = 0  # such as RayJobs without KubeRay: what was listed before stays
            cache.keep_only(kind, listed, version, namespace)
    cache.drop_orphans()
