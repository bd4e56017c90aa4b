"""`python -m tensafe_operator`: in a pod, or beside a cluster with KUBECONFIG.

    lease ─► list, then kopf watches ─► cache ─► work ─► reconcile     (health and metrics beside them, from the start)

When the lease is lost, or kopf ends, the process ends: a new one begins with nothing believed. SIGTERM releases the
lease, so that the other replica goes on at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
import uuid
from typing import Any

from kubernetes.aio import client, config

from tensafe_operator.api import Api, ApiAway, ApiError
from tensafe_operator.cache import Cache, Key
from tensafe_operator.health import Health
from tensafe_operator.lease import Lease
from tensafe_operator.metrics import Metrics
from tensafe_operator.reconcile import Reconciler
from tensafe_operator.relist import relist
from tensafe_operator.settings import Settings
from tensafe_operator.watch import known_kinds, new_kinds, registry, watch
from tensafe_operator.work import Work

RESYNC_SECONDS = 300.0
RETRY_SECONDS = 1.0
BEGIN_ANEW = -1
PORT_VARIABLE = "TENSAFE_PORT"

log = logging.getLogger("tensafe_operator")


class Json(logging.Formatter):
    """One JSON object a line, with whatever fields were given beside the message: job, namespace, attempt, reason."""

    _own = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = {name: value for name, value in record.__dict__.items() if name not in self._own}
        fields |= {name: value for name, value in given.items() if isinstance(value, str | int | float)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


async def operate(settings: Settings) -> int:
    """Lead, and reconcile until told to stop. Returns the exit code, or BEGIN_ANEW.

    The lease is renewed over connections of its own: it does not wait behind the work, nor try one after the other the
    many that a load balancer has forgotten.
    """
    metrics = Metrics()
    apart = Api(client.ApiClient(await _configuration()), metrics.answered)
    health = Health(metrics)
    lease = Lease(apart, settings.own_namespace, f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    api = Api(client.ApiClient(await _configuration()), metrics.answered, lambda: lease.leading)
    stop = asyncio.Event()
    _heed(stop)
    port = int(os.environ.get(PORT_VARIABLE, "8080"))
    runner = await health.serve(port) if port else None
    code = 1
    try:
        tasks = [asyncio.create_task(health.listen(api, settings.own_namespace))]
        stopping = asyncio.create_task(stop.wait())
        acquiring = asyncio.create_task(lease.acquire())
        await asyncio.wait([acquiring, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            metrics.leading.set(1)
            known = await known_kinds(api)  # before kopf looks
            lead = _lead(api, settings, lease, metrics, health, stop)
            tasks += [asyncio.create_task(lease.keep()), asyncio.create_task(lead)]
            grown = asyncio.create_task(new_kinds(api, known))
            tasks.append(grown)
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if grown.done() and not grown.exception():
                log.info("new kinds of objects are there: beginning anew")
                code = BEGIN_ANEW
        for task in (*tasks, acquiring, stopping):
            if task.done() and not task.cancelled() and (error := task.exception()):
                log.error("the operator ends: %s", error, exc_info=error)
            task.cancel()
        await asyncio.gather(*tasks, acquiring, stopping, return_exceptions=True)
        await lease.release()
        return 0 if stop.is_set() else code
    finally:
        if runner is not None:
            await runner.cleanup()
        await api.close()
        await apart.close()


def _heed(stop: asyncio.Event) -> None:
    """Let SIGTERM and Ctrl-C raise the flag."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _lead(
    api: Api, settings: Settings, lease: Lease, metrics: Metrics, health: Health, stop: asyncio.Event
) -> None:
    """Watch and reconcile, until cancelled or kopf ends."""
    cache, work = Cache(), Work()
    reconciler = Reconciler(api, settings, learn=cache.learn)

    async def handle(key: Key) -> float | None:
        if not lease.leading:
            return time.time() + 1.0
        seen = cache.observed(key)
        if seen is None:
            metrics.forget(key)
            return None
        with metrics.duration.time(), metrics.errors.count_exceptions():
            wake = await reconciler.reconcile(*key, seen)
        if (now := cache.observed(key)) is not None:
            metrics.show(key, now.job)
        return wake

    async def resync() -> None:
        while True:
            for key in cache.known():
                work.touch(key)
            await asyncio.sleep(RESYNC_SECONDS)
            try:
                await relist(api, cache, settings)
            except (ApiAway, ApiError) as error:
                log.warning("not everything could be listed: %s", error)

    async def heed_again() -> None:
        await ready.wait()
        _heed(stop)  # kopf has put its own handlers in the place of ours

    await _listed(api, cache, settings)
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(work.run(handle))
        group.create_task(resync())
        group.create_task(heed_again())
        await watch(registry(cache, work.touch, health.heard), settings, ready)
        raise RuntimeError("kopf has ended")


async def _listed(api: Api, cache: Cache, settings: Settings) -> None:
    """Return when everything is in the cache; a kind that is new to the API server makes it ask for patience."""
    while True:
        try:
            return await relist(api, cache, settings)
        except (ApiAway, ApiError) as error:
            log.warning("not everything could be listed yet: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


async def _configuration() -> client.Configuration:
    """The API server as the pod's service account sees it, or as KUBECONFIG says."""
    settings = client.Configuration()
    untyped: Any = config
    if kubeconfig := os.environ.get("KUBECONFIG"):
        await untyped.load_kube_config(kubeconfig, client_configuration=settings)
    else:
        untyped.load_incluster_config(client_configuration=settings)
    return settings


def main() -> int:
    handler = logging.StreamHandler()
    handler.setFormatter(Json())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kopf").setLevel(logging.WARNING)
    while (code := asyncio.run(operate(Settings.from_environment()))) == BEGIN_ANEW:
        pass
    return code


if __name__ == "__main__":
    sys.exit(main())
