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
from collections.abc import Callable, Sequence

from aiohttp import web

from tensafe_operator.reconcile import Reconciler
from tensafe_operator.runtime.api_client import FORBIDDEN, ApiClient, ApiError, ApiUnavailable
from tensafe_operator.runtime.cache import Cache, Key
from tensafe_operator.runtime.connection import KUBECONFIG, connect, said
from tensafe_operator.runtime.health import Health
from tensafe_operator.runtime.json_logs import JsonFormatter
from tensafe_operator.runtime.leader_election import LeaderElection
from tensafe_operator.runtime.metrics import Metrics
from tensafe_operator.runtime.resync import resync
from tensafe_operator.runtime.shutdown import Shutdown, TaskSupervisor
from tensafe_operator.runtime.watch import known_kinds, new_kinds, registry, watch
from tensafe_operator.runtime.work_queue import WorkQueue
from tensafe_operator.settings import ConfigurationError, Settings, explained, variable

RESYNC_SECONDS = 300.0
RETRY_SECONDS = 1.0
BEGIN_ANEW = -1
WATCHING, RECONCILING = "watching", "reconciling"
_COMMAND = "python -m tensafe_operator"

log = logging.getLogger("tensafe_operator")


async def operate(settings: Settings, ending: Shutdown) -> int:
    """Lead, and reconcile until told to stop. Returns the exit code, or BEGIN_ANEW.

    The lease is renewed over connections of its own: it does not wait behind the work, nor try one after the other the
    many that a load balancer has forgotten. Whatever ends first ends all.
    """
    metrics, tasks, stop = Metrics(), TaskSupervisor(), asyncio.Event()
    apart = ApiClient(await connect(), metrics.answered)
    lease = LeaderElection(apart, settings.own_namespace, f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    api = ApiClient(await connect(), metrics.answered, lambda: lease.leading)
    health = Health(metrics, lease)

    def heed() -> None:
        """Let SIGTERM and Ctrl-C raise the flag."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, asked)

    def asked() -> None:
        ending.asked = True
        stop.set()

    heed()
    runner = None
    try:
        runner = await _serve(health, settings.port)
        tasks.start("stopping", stop.wait())
        tasks.start("listening", health.listen(api, settings.own_namespace))
        grown = None
        if await tasks.done("taking the lease", lease.acquire()):
            metrics.leading.set(1)
            grown = await _lead(tasks, api, settings, lease, metrics, health, heed)
            await tasks.first()
        ending.begin()
        _hush()
        if anew := not stop.is_set() and grown is not None and grown.done() and not grown.exception():
            log.info("new kinds of objects are there: beginning anew")
        unusable = _told(tasks)
        await tasks.end()
        await lease.release()
        if unusable is not None:
            raise unusable
        return BEGIN_ANEW if anew else 0 if stop.is_set() else 1
    finally:
        if runner is not None:
            await runner.cleanup()
        await api.close()
        await apart.close()


async def _lead(
    tasks: TaskSupervisor,
    api: ApiClient,
    settings: Settings,
    lease: LeaderElection,
    metrics: Metrics,
    health: Health,
    heed: Callable[[], None],
) -> asyncio.Task[None] | None:
    """Begin to watch and reconcile; the task that ends when there are new kinds, or None where there was an end."""
    cache, work, ready = Cache(), WorkQueue(), asyncio.Event()
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

    async def resync_periodically() -> None:
        while True:
            for key in cache.known():
                work.touch(key)
            await asyncio.sleep(RESYNC_SECONDS)
            try:
                await resync(api, cache, settings)
            except (ApiUnavailable, ApiError) as error:
                log.warning("not everything could be listed: %s", error)

    tasks.start("keeping the lease", lease.keep())
    looked = await tasks.done("looking at the kinds", known_kinds(api))  # before kopf looks
    if looked is None or not await tasks.done("listing", _listed(api, cache, settings)):
        return None
    tasks.start(RECONCILING, work.run(handle))
    tasks.start("looking again", resync_periodically())
    tasks.start(WATCHING, watch(registry(cache, work.touch, health.heard), settings, ready))
    if not await tasks.done("kopf's beginning", ready.wait()):
        return None
    heed()  # kopf has put its own handlers in the place of ours
    return tasks.start("looking for new kinds", new_kinds(api, looked.result()))


def _told(tasks: TaskSupervisor) -> ConfigurationError | None:
    """Say which errors tasks have ended with; what somebody must set right is returned."""
    unusable = None
    for task in tasks.ended():
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ConfigurationError):
            unusable = error
        elif error is not None:
            log.error("the operator ends: %s: %s", task.get_name(), error, exc_info=error)
        elif task.get_name() in (WATCHING, RECONCILING):
            log.error("the operator ends: %s has ended", task.get_name())
    return unusable


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
        raise ConfigurationError(
            f"{variable('port')}: nothing can listen on port {port} ({said(error)}): {mend}."
        ) from error


async def _listed(api: ApiClient, cache: Cache, settings: Settings) -> None:
    """Return when everything is in the cache; a kind that is new to the API server makes it ask for patience.

    Raises:
        ConfigurationError: where the operator may not look.
    """
    while True:
        try:
            return await resync(api, cache, settings)
        except (ApiUnavailable, ApiError) as error:
            if isinstance(error, ApiError) and error.status == FORBIDDEN:
                name = variable("namespaces")
                looks = f"is {','.join(settings.namespaces)}" if settings.namespaces else "is not set, which means all"
                mend = "name the namespaces that the chart's value `namespaces` has, which gives the rights"
                raise ConfigurationError(
                    f"{name} {looks}, and not all of it may be looked at ({error}): {mend}."
                ) from error
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
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    ending = Shutdown()
    try:
        while True:
            logging.getLogger("kopf").setLevel(logging.WARNING)
            if (code := asyncio.run(operate(Settings.from_environment(), ending))) != BEGIN_ANEW:
                return code
            if ending.asked:  # meanwhile
                return 0
            ending.in_time()
    except ConfigurationError as error:
        log.error("%s", error)
        return 1
    finally:
        ending.in_time()


if __name__ == "__main__":
    sys.exit(main())
