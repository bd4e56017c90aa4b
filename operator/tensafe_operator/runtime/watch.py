"""From kopf's event streams to the cache and the queue: nothing here decides anything.

Only `on.event` is used: it writes nothing (no finalizer, no annotation), and every cause leads to the same reconcile.
(kopf's own index would also keep what it shows, but it takes minutes to fill with a thousand jobs: `resync` does that.)
The handlers are coroutines though they wait for nothing: kopf would run plain functions in threads, beside the loop on
which cache and queue live.
KubeRay's kinds may be installed later: `new_kinds` looks for them, and then the operator begins anew.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import kopf

from tensafe_api.resources.job import GROUP, VERSION
from tensafe_operator import names
from tensafe_operator.observe import warned
from tensafe_operator.runtime.api_client import ApiClient, ApiError, ApiUnavailable
from tensafe_operator.runtime.cache import Cache, Key
from tensafe_operator.runtime.connection import KUBECONFIG
from tensafe_operator.settings import Settings

LOOK_SECONDS = 10.0
_KINDS = frozenset({"TenSafeTrainingJob", "PrivacyLedger", "RayJob"})
"""Kinds that an operator can be there before."""
Touch = Callable[[Key], None]
INACTIVITY_SECONDS = 70.0
"""A stream that says nothing for so long, bookmarks included, is opened anew: load balancers freeze them silently."""
IDLE_SECONDS = 0.5
"""For so long kopf holds on to the whole body of an object after its last event, with a task of its own."""


def login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """Where kopf's streams come from: the same API server, by the same address, as our own requests go to.

    (By itself kopf asks DNS for the API server in a pod: while DNS is away, nothing would be heard.)
    """
    if os.environ.get(KUBECONFIG):
        return kopf.login_with_kubeconfig(**arguments)
    account = kopf.login_with_service_account(**arguments)
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if account is None or not host:
        return account
    host = f"[{host}]" if ":" in host else host
    return replace(account, server=f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}")


def registry(cache: Cache, touch: Touch, heard: Callable[[], None]) -> kopf.OperatorRegistry:
    """The handlers: each puts what it is told into `cache` and touches the job that it is about.

    Args:
        heard: called at each event, for the health check.
    """
    made = kopf.OperatorRegistry()

    kopf.on.login(registry=made)(login)

    @kopf.on.event(GROUP, VERSION, "tensafetrainingjobs", registry=made)
    async def job(event: kopf.RawEvent, **_: Any) -> None:
        heard()
        body = event["object"]
        if event["type"] == "DELETED":
            cache.drop_job(body)
        elif (key := cache.put_job(body)) is not None:
            touch(key)

    def child(kind: str) -> Callable[..., Awaitable[None]]:
        async def told(event: kopf.RawEvent, **_: Any) -> None:
            heard()
            body = event["object"]
            key = cache.drop(kind, body) if event["type"] == "DELETED" else cache.put(kind, body)
            if key is not None:
                touch(key)

        return told

    kopf.on.event(GROUP, VERSION, "privacyledgers", registry=made, id="ledgers")(child("PrivacyLedger"))
    kopf.on.event("ray.io", "v1", "rayjobs", registry=made, id="rayjobs")(child("RayJob"))
    kopf.on.event("v1", "pods", registry=made, id="pods")(child("Pod"))

    @kopf.on.event("v1", "events", registry=made, field="type", value="Warning")
    async def warning(event: kopf.RawEvent, **_: Any) -> None:
        body: Any = event["object"]
        key = cache.warn(str((body.get("involvedObject") or {}).get("uid")), warned(body))
        if key is not None and event["type"] != "DELETED":
            touch(key)

    return made


async def watch(handlers: kopf.OperatorRegistry, settings: Settings, ready: asyncio.Event) -> None:
    """Run kopf; `ready` is set once it runs."""
    await kopf.operator(
        registry=handlers,
        settings=kopf_settings(),
        namespaces=settings.namespaces,
        clusterwide=not settings.namespaces,
        standalone=True,
        ready_flag=ready,
    )


async def new_kinds(api: ApiClient, known: frozenset[str]) -> None:
    """Return when there is a kind that was not `known`."""
    while known == _KINDS or await known_kinds(api) <= known:
        await asyncio.sleep(LOOK_SECONDS)


async def known_kinds(api: ApiClient) -> frozenset[str]:
    """Those of the kinds that may be missing that the cluster knows now; none of them where it cannot be asked."""
    try:
        return frozenset([kind for kind in _KINDS if await api.knows(kind)])
    except (ApiUnavailable, ApiError):
        return frozenset()


def kopf_settings() -> kopf.OperatorSettings:
    """How kopf watches for us."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.scanning.disabled = True
    made.watching.label_selectors["pods"] = names.JOB_UID
    made.watching.inactivity_timeout = INACTIVITY_SECONDS
    made.queueing.idle_timeout = IDLE_SECONDS
    made.persistence.diffbase_storage = _NoDifferences()
    return made


class _NoDifferences(kopf.DiffBaseStorage):
    """Says that nothing ever differs. kopf would copy each object that it shows, to compare it with an earlier one for
    handlers of a kind that there are none of: a tenth of its time with large objects.
    """

    def build(self, *, body: Mapping[str, Any], extra_fields: Iterable[Any] | None = None) -> Any:
        return {}

    def fetch(self, *, body: Mapping[str, Any]) -> Any:
        return None

    def store(self, *, body: Mapping[str, Any], patch: Any, essence: Any) -> None:
        """Nothing is ever written into an object."""
