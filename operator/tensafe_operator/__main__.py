"""`python -m tensafe_operator`: in a pod, or beside a cluster with KUBECONFIG.

    lease ─► list, then kopf watches ─► cache ─► work ─► reconcile     (health and metrics beside them, from the start)

When the lease is lost, or kopf ends, the process ends: a new one begins with nothing believed. SIGTERM releases the
lease, so that the other replica goes on at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tensafe_operator.api import FORBIDDEN, Api, ApiAway, ApiError
from tensafe_operator.cache import Cache, Key
from tensafe_operator.connection import KUBECONFIG, connection, said
from tensafe_operator.health import Health
from tensafe_operator.lease import Lease
from tensafe_operator.logs import Json
from tensafe_operator.metrics import Metrics
from tensafe_operator.reconcile import Reconciler
from tensafe_operator.relist import relist
from tensafe_operator.settings import Settings, Unusable, explained, variable
from tensafe_operator.watch import known_kinds, new_kinds, registry, watch
from tensafe_operator.work import Work

RESYNC_SECONDS = 300.0
RETRY_SECONDS = 1.0
CANCEL_SECONDS = 5.0
BEGIN_ANEW = -1
_COMMAND = "python -m tensafe_operator"

log = logging.getLogger("tensafe_operator")


async def operate(settings: Settings) -> int:
    """Lead, and reconcile until told to stop. Returns the exit code, or BEGIN_ANEW.

    The lease is renewed over connections of its own: it does not wait behind the work, nor try one after the other the
    many that a load balancer has forgotten.
    """
    metrics = Metrics()
    apart = Api(await connection(), metrics.answered)
    lease = Lease(apart, settings.own_namespace, f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    api = Api(await connection(), metrics.answered, lambda: lease.leading)
    health = Health(metrics, lease)
    stop = asyncio.Event()
    _heed(stop)
    runner = None
    code = 1
    try:
        runner = await _serve(health, settings.port)
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
        _hush()
        unusable = None
        for task in (*tasks, acquiring, stopping):
            if task.done() and not task.cancelled() and (error := task.exception()):
                if isinstance(error, Unusable):
                    unusable = error
                else:
                    log.error("the operator ends: %s", error, exc_info=error)
        await _ended({*tasks, acquiring, stopping})
        await lease.release()
        if unusable is not None:
            raise unusable
        return 0 if stop.is_set() else code
    finally:
        if runner is not None:
            await runner.cleanup()
        await api.close()
        await apart.close()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    """Return once these have ended. They are cancelled until they do: kopf waits for much with `asyncio.wait_for`, and
    Python 3.11's can swallow a cancellation.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)


def _heed(stop: asyncio.Event) -> None:
    """Let SIGTERM and Ctrl-C raise the flag."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


def _hush() -> None:
    """All is being cancelled now: what kopf says of that is no news, nor in which order its generators are closed."""
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


async def _serve(health: Health, port: int) -> web.AppRunner | None:
    """Let health and metrics be asked for, where a port is given."""
    try:
        return await health.serve(port) if port else None
    except OSError as error:
        mend = "set it to a free one, or to 0 for neither health nor metrics"
        raise Unusable(f"{variable('port')}: nothing can listen on port {port} ({said(error)}): {mend}.") from error


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
        try:
            with metrics.duration.time(), metrics.errors.count_exceptions():
                return await reconciler.reconcile(*key, seen)
        finally:
            if (now := cache.observed(key)) is not None:
                metrics.show(key, now.job)

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
    """Return when everything is in the cache; a kind that is new to the API server makes it ask for patience.

    Raises:
        Unusable: where the operator may not look.
    """
    while True:
        try:
            return await relist(api, cache, settings)
        except (ApiAway, ApiError) as error:
            if isinstance(error, ApiError) and error.status == FORBIDDEN:
                name = variable("namespaces")
                looks = f"is {','.join(settings.namespaces)}" if settings.namespaces else "is not set, which means all"
                mend = "name the namespaces that the chart's value `namespaces` has, which gives the rights"
                raise Unusable(f"{name} {looks}, and not all of it may be looked at ({error}): {mend}.") from error
            log.warning("not everything could be listed yet: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


def _parser() -> argparse.ArgumentParser:
    variables = [(KUBECONFIG, "kubeconfig file of the cluster; not needed in a pod"), *explained()]
    lines = (f"  {name:<26}{text}" for name, text in variables)
    return argparse.ArgumentParser(
        prog=_COMMAND,
        description="Run TenSafeTrainingJobs: make a RayJob for each attempt and a PrivacyLedger for each job, and\n"
        "say in the job's status how it stands. It runs in a pod (the Helm chart sets it up) or beside a\n"
        "cluster. Of several, one leads. SIGTERM or Ctrl-C stops it; jobs that run go on.",
        epilog="\n".join(["environment:", *lines, "", "example:", f"  {KUBECONFIG}=~/.kube/config {_COMMAND}"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until it is told to stop. Returns the exit code: 0 then, 1 where it cannot begin or go on."""
    _parser().parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(Json())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        while True:
            logging.getLogger("kopf").setLevel(logging.WARNING)
            if (code := asyncio.run(operate(Settings.from_environment()))) != BEGIN_ANEW:
                return code
    except Unusable as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
