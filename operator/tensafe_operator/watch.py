"""From kopf's event streams to the cache and the queue: nothing here decides anything.

Only `on.event` is used: it writes nothing (no finalizer, no annotation), and every cause leads to the same reconcile.
KubeRay's kinds may be installed later: kopf watches the cluster's CRDs and begins to watch RayJobs then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from tensafe_api.resources.job import GROUP, VERSION
from tensafe_operator import names
from tensafe_operator.cache import Cache, Key
from tensafe_operator.observe import warned
from tensafe_operator.settings import Settings

Touch = Callable[[Key], None]
INACTIVITY_SECONDS = 70.0
"""A stream that says nothing for so long, bookmarks included, is opened anew: load balancers freeze them silently."""


def registry(cache: Cache, touch: Touch, heard: Callable[[], None]) -> kopf.OperatorRegistry:
    """The handlers: each puts what it is told into `cache` and touches the job that it is about.

    Args:
        heard: called at each event, for the health check.
    """
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(GROUP, VERSION, "tensafetrainingjobs", registry=made)
    def job(event: kopf.RawEvent, **_: Any) -> None:
        heard()
        body = event["object"]
        if event["type"] == "DELETED":
            cache.drop_job(body)
        else:
            touch(cache.put_job(body))

    def child(kind: str) -> Callable[..., None]:
        def told(event: kopf.RawEvent, **_: Any) -> None:
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
    def warning(event: kopf.RawEvent, **_: Any) -> None:
        body: Any = event["object"]
        key = cache.warn(str((body.get("involvedObject") or {}).get("uid")), warned(body))
        if key is not None and event["type"] != "DELETED":
            touch(key)

    return made


def kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """How kopf watches for us."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.scanning.disabled = bool(settings.namespaces)
    made.watching.label_selectors["pods"] = names.JOB_UID
    made.watching.inactivity_timeout = INACTIVITY_SECONDS
    return made
