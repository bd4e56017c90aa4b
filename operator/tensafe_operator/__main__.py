"""`python -m tensafe_operator`: runs the operator, in a pod or outside the cluster with KUBECONFIG.

    leader election ─► resync, then kopf's watch streams ─► cache ─► work queue ─► reconcile

The health and metrics endpoints are served from the start. If the Lease is lost or kopf ends, the process ends, and the
next one starts with an empty cache. SIGTERM gives the Lease up, so that another replica can lead immediately.
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
from pathlib import Path

from aiohttp import web

from tensafe_operator import names
from tensafe_operator.job_metrics import JobMetrics
from tensafe_operator.kinds import KINDS
from tensafe_operator.ledger_guard import LedgerGuard
from tensafe_operator.observe import observe_cached, parse_warning
from tensafe_operator.plan.observed import ClusterWarning
from tensafe_operator.reconcile import Reconciler
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import FORBIDDEN, ApiError, ApiUnavailable
from tensafe_operator.runtime.authorization import Authorizer
from tensafe_operator.runtime.cache import Cache
from tensafe_operator.runtime.connection import KUBECONFIG, connect, safe_description
from tensafe_operator.runtime.errors import ConfigurationError
from tensafe_operator.runtime.health import Health
from tensafe_operator.runtime.json_logs import JsonFormatter
from tensafe_operator.runtime.leader_election import LeaderElection
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensafe_operator.runtime.namespaces import report_namespaces, served_namespaces, wait_for_other_namespaces
from tensafe_operator.runtime.objects import Key
from tensafe_operator.runtime.resync import resync
from tensafe_operator.runtime.serving_certificate import ServingCertificate
from tensafe_operator.runtime.shutdown import Shutdown, TaskSupervisor
from tensafe_operator.runtime.watch import available_kinds, handlers, wait_for_new_kinds, watch
from tensafe_operator.runtime.work_queue import TakesLong, WorkQueue
from tensafe_operator.settings import Settings, describe_variables, variable

RESYNC_SECONDS = 300.0
RETRY_SECONDS = 1.0
RESTART = -1
WATCHING, RECONCILING = "watching", "reconciling"
_COMMAND = "python -m tensafe_operator"

log = logging.getLogger("tensafe_operator")


async def operate(settings: Settings, shutdown: Shutdown) -> int:
    """Wait for leadership, then reconcile until a signal arrives or a task ends. Returns the exit code, or RESTART.

    The leader election has an API client of its own. Its renewals do not wait behind other requests. They also do not
    try, one after the other, many connections that a load balancer has dropped.
    """
    metrics, tasks, stop = OperatorMetrics(names.METRICS_PREFIX), TaskSupervisor(), asyncio.Event()
    resources, manager = KINDS.resources, names.OPERATOR
    connection = await connect()
    election_api = ApiClient(connection, resources, manager, metrics.count_request)
    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    election = LeaderElection(election_api, settings.own_namespace, settings.lease, identity, settings.lease_durations)
    clock = ServerClock()
    api = ApiClient(connection, resources, manager, metrics.count_request, lambda: election.leading)
    review_api = ApiClient(connection, resources, manager, metrics.count_request)  # also without the Lease
    health = Health(metrics, election)

    def handle_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, request_shutdown)

    def request_shutdown() -> None:
        shutdown.requested = True
        stop.set()

    handle_signals()
    runner = None
    try:
        certificate = _certificate(settings.metrics_tls)
        runner = await _serve(health, settings, certificate, Authorizer(review_api))
        tasks.start("waiting for a signal", stop.wait())
        if certificate is not None:
            tasks.start("reloading the certificate", certificate.reload_when_changed())
        tasks.start(
            "monitoring health", health.monitor(lambda: api.get("Lease", settings.own_namespace, settings.lease))
        )
        changes: list[asyncio.Task[None]] = []
        if await tasks.complete("acquiring the lease", election.acquire()):
            metrics.leading.set(1)
            changes = await _lead(tasks, api, settings, election, metrics, health, handle_signals)
            await tasks.wait_for_first()
        shutdown.start_deadline()
        _silence_kopf()
        # kopf cancels the tasks that were started after it, where one of its streams fails.
        ended = [each for each in changes if each.done() and not each.cancelled()]
        restart = not stop.is_set() and any(not each.exception() for each in ended)
        if restart:
            log.info("the cluster has new kinds of objects, other namespaces or newer CRDs: reading everything again")
        configuration_error = _log_errors(tasks)
        await tasks.cancel_all()
        await election.give_up()
        if configuration_error is not None:
            raise configuration_error
        return RESTART if restart else 0 if stop.is_set() else 1
    finally:
        if runner is not None:
            await runner.cleanup()
        for each in (api, election_api, review_api):
            await each.close()


async def _lead(
    tasks: TaskSupervisor,
    api: ApiClient,
    settings: Settings,
    election: LeaderElection,
    metrics: OperatorMetrics,
    health: Health,
    handle_signals: Callable[[], None],
) -> list[asyncio.Task[None]]:
    """Start to watch and reconcile.

    Returns:
        The tasks that end when everything has to be read again: the cluster has new kinds, other namespaces can be
        served, or the CRDs were older for a time. None of them if a task has ended before everything was started.
    """
    cache, ready = Cache[ClusterWarning](KINDS), asyncio.Event()
    job_metrics = JobMetrics(metrics.registry, per_job=settings.metrics_per_job)
    queue = WorkQueue(lambda key: names.log_fields(*key))
    metrics.queue_depth.set_function(lambda: queue.depth)
    guard = LedgerGuard(api, metrics.registry)
    reconciler = Reconciler(api, settings, time.time, cache.learn, guarded=guard.is_present)

    async def handle(key: Key, patient: bool) -> float | None:
        if not election.leading:
            return time.time() + 1.0
        observed = observe_cached(cache, key)
        if observed is None:
            job_metrics.remove(key)
            queue.forget(key)
            return None
        try:
            with metrics.duration.time():
                return await reconciler.reconcile(*key, observed, patient=patient)
        except TakesLong:
            raise
        except Exception:
            metrics.errors.inc()
            raise
        finally:
            if (job := cache.parent(key)) is not None:
                job_metrics.update(key, job)

    async def compute(key: Key) -> bool:
        observed = observe_cached(cache, key)
        return observed is not None and await reconciler.compute(observed)

    async def resync_periodically() -> None:
        before: list[Key] = []
        while True:
            for key in {*before, *cache.known_keys()}:  # also the jobs that the resync has dropped
                queue.touch(key)
            await asyncio.sleep(RESYNC_SECONDS)
            before = cache.known_keys()
            try:
                await resync(api, cache, KINDS, served)
                await guard.check()
            except (ApiUnavailable, ApiError) as error:
                log.warning("the resync failed, the next one is in %.0f s: %s", RESYNC_SECONDS, error)

    async def watch_while_served() -> None:
        try:
            await watch(registry, KINDS, served, ready)
        except Exception:  # a stream of a deleted namespace is forbidden
            if await served_namespaces(api, KINDS, settings.namespaces) == served:
                raise
            await asyncio.Event().wait()  # the task that waits for other namespaces ends all tasks

    tasks.start("keeping the lease", election.keep())
    known = await tasks.complete("discovering kinds", available_kinds(api, KINDS))  # before kopf does
    listed = await tasks.complete("listing", _first_list(api, cache, guard, settings)) if known else None
    if known is None or listed is None:
        return []
    served = listed.result()
    report_namespaces(metrics, settings.namespaces, served)
    tasks.start(RECONCILING, queue.run(handle, compute))
    tasks.start("resyncing", resync_periodically())
    registry = handlers(KINDS, cache, queue.touch, parse_warning, health.heard)
    tasks.start(WATCHING, watch_while_served())
    if not await tasks.complete("starting kopf", ready.wait()):
        return []
    handle_signals()  # kopf has replaced the signal handlers
    changes = [
        tasks.start("waiting for new kinds", wait_for_new_kinds(api, KINDS, known.result())),
        tasks.start("waiting for CRDs that keep every field", guard.wait_until_crds_are_back()),
    ]
    if settings.namespaces:
        others = wait_for_other_namespaces(api, KINDS, settings.namespaces, served)
        changes.append(tasks.start("waiting for other namespaces", others))
    return changes


def _log_errors(tasks: TaskSupervisor) -> ConfigurationError | None:
    """Log the errors that tasks have ended with. A configuration error is returned instead, without a traceback."""
    configuration_error = None
    for task in tasks.ended():
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ConfigurationError):
            configuration_error = error
        elif error is not None:
            log.error("the operator ends: %s failed: %s", task.get_name(), error, exc_info=error)
        elif task.get_name() in (WATCHING, RECONCILING):
            log.error("the operator ends: %s has ended", task.get_name())
    return configuration_error


def _silence_kopf() -> None:
    """Drop what kopf and the event loop log about tasks and generators that are being cancelled."""
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


def _certificate(folder: str) -> ServingCertificate | None:
    """The certificate in a folder; None if the setting is empty."""
    try:
        return ServingCertificate(Path(folder)) if folder else None
    except ConfigurationError as error:
        fix = "set it to the folder of a mounted Secret of type kubernetes.io/tls"
        raise ConfigurationError(
            f"{variable('metrics_tls')} is {folder}, which cannot be used ({error}): {fix}."
        ) from error


async def _serve(
    health: Health, settings: Settings, certificate: ServingCertificate | None, authorizer: Authorizer
) -> web.AppRunner | None:
    """Serve health and metrics, unless the port is 0."""
    port = settings.port
    try:
        return await health.serve(port, certificate, authorizer if settings.metrics_auth else None) if port else None
    except OSError as error:
        fix = "set it to a free port, or to 0 to serve neither health nor metrics"
        found = safe_description(error)
        raise ConfigurationError(f"{variable('port')} is {port}, which cannot be opened ({found}): {fix}.") from error


async def _first_list(
    api: ApiClient, cache: Cache[ClusterWarning], guard: LedgerGuard, settings: Settings
) -> frozenset[str]:
    """Return the namespaces to watch (empty: all) when all their objects are in the cache, and the guard was checked.

    While the API server prepares a new kind, lists are retried.

    Raises:
        ConfigurationError: if the operator lacks the right to list in all namespaces, or in each of its list.
    """
    while True:
        try:
            served = await served_namespaces(api, KINDS, settings.namespaces)
            await guard.check()  # before the list too: older CRDs may be replaced while it is read
            await resync(api, cache, KINDS, served)
            await guard.check()
            return served
        except (ApiUnavailable, ApiError) as error:
            if isinstance(error, ApiError) and error.status == FORBIDDEN:
                found = f"is {','.join(settings.namespaces)}" if settings.namespaces else "is not set (all namespaces)"
                fix = "set it to the namespaces in the chart's value `namespaces`, which grants the rights"
                name = variable("namespaces")
                refusal = f"{name} {found}, but the operator may not list all objects there ({error}): {fix}."
                raise ConfigurationError(refusal) from error
            log.warning("the first list of all objects failed, retrying: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


def _parser() -> argparse.ArgumentParser:
    variables = [(KUBECONFIG, "kubeconfig file of the cluster; not needed in a pod"), *describe_variables()]
    lines = (f"  {name:<26}{text}" for name, text in variables)
    return argparse.ArgumentParser(
        prog=_COMMAND,
        description="Run the TenSafe operator. For each TenSafeTrainingJob it creates a PrivacyLedger, and for each\n"
        "attempt a RayJob. It reports progress in the job's status. It runs in a pod, which the Helm chart\n"
        "installs, or outside the cluster. Of several replicas one leads. SIGTERM or Ctrl-C stops the\n"
        "operator; running jobs continue.",
        epilog="\n".join(["environment:", *lines, "", "example:", f"  {KUBECONFIG}=~/.kube/config {_COMMAND}"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until a signal stops it.

    Returns:
        The exit code: 0 after a signal, 1 if the operator cannot start or continue.
    """
    _parser().parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    shutdown = Shutdown()
    try:
        while True:
            logging.getLogger("kopf").setLevel(logging.WARNING)
            if (code := asyncio.run(operate(Settings.from_environment(), shutdown))) != RESTART:
                return code
            if shutdown.requested:  # during the restart
                return 0
            shutdown.cancel_deadline()
    except ConfigurationError as error:
        log.error("%s", error)
        return 1
    finally:
        shutdown.cancel_deadline()


if __name__ == "__main__":
    sys.exit(main())
