"""Passes the events of kopf's watch streams to the cache and the work queue. Nothing is decided here.

Of kopf's handlers only `on.event` is used. It writes nothing (no finalizer, no annotation), and every cause leads to
the same reconcile. docs/decisions/0018-kopf-for-watch-and-login-only.md gives the reasons.

The handlers are coroutines although they await nothing: kopf would run plain functions in threads, but the cache and
the queue belong to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import kopf

from tensafe_operator.runtime.api_client import PAGE_SIZE, ApiClient
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tensafe_operator.runtime.cache import Cache
from tensafe_operator.runtime.connection import login
from tensafe_operator.runtime.objects import Key, Kinds, Manifest

NEW_KINDS_SECONDS = 10.0
"""Polling interval for CRDs that are installed after the operator has started."""
INACTIVITY_SECONDS = 70.0
"""A stream without events or bookmarks for so long is opened again: load balancers can freeze streams silently."""
IDLE_SECONDS = 0.1
"""For how long kopf keeps the body of an object, and a task for it, after the object's last event."""
W = TypeVar("W")


def handlers(
    kinds: Kinds,
    cache: Cache[W],
    touch: Callable[[Key], None],
    parse_warning: Callable[[Manifest], W],
    heard: Callable[[], None],
) -> kopf.OperatorRegistry:
    """One handler per watched kind: it updates `cache` and passes the key of the affected parent to `touch`.

    Args:
        parse_warning: converts an Event of type Warning to what the cache keeps.
        heard: called at each event of a watched kind, for the health check.
    """
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login)

    for kind in kinds.watched:
        resource = kinds.resources[kind]
        place = (resource.group, resource.version, resource.plural)
        kopf.on.event(*place, registry=registry, id=resource.plural)(_handler(kind, cache, touch, heard))

    handle_warning = _warning_handler(cache, touch, parse_warning)
    kopf.on.event("v1", "events", registry=registry, id="warnings", field="type", value="Warning")(handle_warning)
    return registry


def _handler(
    kind: str, cache: Cache[W], touch: Callable[[Key], None], heard: Callable[[], None]
) -> Callable[..., Awaitable[None]]:
    """The handler of the events of one kind. The deletion of a parent touches its key, too."""

    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        heard()
        body = event["object"]
        key = cache.drop(kind, body) if event["type"] == "DELETED" else cache.put(kind, body)
        if key is not None:
            touch(key)

    return handle


def _warning_handler(
    cache: Cache[W], touch: Callable[[Key], None], parse_warning: Callable[[Manifest], W]
) -> Callable[..., Awaitable[None]]:
    """The handler of Events. The API server deletes an Event after an hour, and with it the warning is forgotten."""

    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        body: Any = event["object"]
        about = body.get("involvedObject") or {}
        kind, name, uid = (str(about.get(field)) for field in ("kind", "name", "uid"))
        keep = cache.forget_warning if event["type"] == "DELETED" else cache.warn
        topic = str(body.get("reason"))
        key = keep(str(body["metadata"].get("namespace")), kind, name, uid, topic, parse_warning(body))
        if key is not None:
            touch(key)

    return handle


async def watch(
    registry: kopf.OperatorRegistry, kinds: Kinds, namespaces: Collection[str], ready: asyncio.Event
) -> None:
    """Run kopf until cancelled; `ready` is set when it runs. An empty `namespaces` means all namespaces."""
    await kopf.operator(
        registry=registry,
        settings=kopf_settings(kinds),
        namespaces=namespaces,
        clusterwide=not namespaces,
        standalone=True,
        ready_flag=ready,
    )


async def wait_for_new_kinds(api: ApiClient, kinds: Kinds, known: frozenset[str]) -> None:
    """Return when the cluster knows a kind that is not in `known`."""
    while known == kinds.installed_later or await available_kinds(api, kinds) <= known:
        await asyncio.sleep(NEW_KINDS_SECONDS)


async def available_kinds(api: ApiClient, kinds: Kinds) -> frozenset[str]:
    """Those of `kinds.installed_later` that the cluster knows now; none of them if the API server does not answer."""
    try:
        return frozenset([kind for kind in kinds.installed_later if await api.knows(kind)])
    except (ApiUnavailable, ApiError):
        return frozenset()


def kopf_settings(kinds: Kinds) -> kopf.OperatorSettings:
    """kopf's settings for watching only."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    for kind, selector in kinds.selectors.items():
        settings.watching.label_selectors[kinds.resources[kind].plural] = selector
    settings.watching.field_selectors["events"] = "type=Warning"  # a cluster has many more of type Normal
    settings.watching.chunk_size = PAGE_SIZE
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.persistence.diffbase_storage = _NoDiffBase()
    return settings


class _NoDiffBase(kopf.DiffBaseStorage):
    """Reports that no object ever differs from an earlier version of it.

    kopf copies each object of an event to compare it with the version that a change handler has seen last. This
    operator has no change handlers, and the copies took a tenth of its CPU time with large objects.
    """

    def build(self, *, body: Mapping[str, Any], extra_fields: Iterable[Any] | None = None) -> Any:
        return {}

    def fetch(self, *, body: Mapping[str, Any]) -> Any:
        return None

    def store(self, *, body: Mapping[str, Any], patch: Any, essence: Any) -> None:
        """Nothing is ever written into an object."""
