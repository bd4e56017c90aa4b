"""`python -m tensafe_operator`: in a pod, or beside a cluster with KUBECONFIG.

    lease ─► list, then kopf watches ─► cache ─► work ─► reconcile     (health and metrics beside them, from the start)

When the lease is lost, or kopf ends, the process ends: a new one begins with nothing believed. SIGTERM releases the
lease, so that the other replica goes on at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from kubernetes.aio import client, config

from tensafe_operator.api import Api, ApiAway, ApiError
from tensafe_operator.cache import Cache, Key
from tensafe_operator.health import Health
from tensafe_operator.lease import Lease
from tensafe_operator.metrics import Metrics
from tensafe_operator.reconcile import Reconciler
from tensafe_operator.relist import relist
from tensafe_operator.settings import Settings, Unusable, explained, variable
from tensafe_operator.watch import known_kinds, new_kinds, registry, watch
from tensafe_operator.work import Work

RESYNC_SECONDS = 300.0
RETRY_SECONDS = 1.0
BEGIN_ANEW = -1
_COMMAND = "python -m tensafe_operator"
KUBECONFIG = "KUBECONFIG"

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
    apart = Api(await _connection(), metrics.answered)
    lease = Lease(apart, settings.own_namespace, f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    api = Api(await _connection(), metrics.answered, lambda: lease.leading)
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
        raise Unusable(f"{variable('port')}: nothing can listen on port {port} ({_said(error)}): {mend}.") from error


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
    """Return when everything is in the cache; a kind that is new to the API server makes it ask for patience."""
    while True:
        try:
            return await relist(api, cache, settings)
        except (ApiAway, ApiError) as error:
            log.warning("not everything could be listed yet: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


async def _connection() -> client.ApiClient:
    """To the API server as the pod's service account sees it, or as KUBECONFIG says."""
    settings = client.Configuration()
    untyped: Any = config
    paths = os.environ.get(KUBECONFIG)
    mend = f"set {KUBECONFIG} to the path of a kubeconfig file"
    if paths and not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise Unusable(f"{KUBECONFIG} is {paths}, and no file is there: {mend}.")
    try:
        if paths:
            await untyped.load_kube_config(paths, client_configuration=settings)
        else:
            untyped.load_incluster_config(client_configuration=settings)
        if not urlsplit(settings.host).hostname:
            raise config.ConfigException("Expected key server in the cluster of the current context")
        return client.ApiClient(settings)
    except Exception as error:  # whatever reading somebody's file may lead to
        if paths:
            raise Unusable(f"{KUBECONFIG} is {paths}, which cannot be used ({_said(error)}): {mend}.") from error
        why = str(error).rstrip(".")
        raise Unusable(f"{KUBECONFIG} is not set, and this is no pod ({why}): {mend}.") from error


def _said(error: Exception) -> str:
    """What an error says, as far as it is sure not to quote a file: a kubeconfig holds a secret."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    missing = re.search(r"Expected (key|object with name) \S+", str(error))
    return missing[0] if missing else type(error).__name__


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
