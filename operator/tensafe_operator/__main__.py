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
import uuid
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from tensafe_operator import names
from tensafe_operator.gate import Gate
from tensafe_operator.kinds import KINDS
from tensafe_operator.leading import RECONCILING, WATCHING, Leader
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.authorization import Authorizer
from tensafe_operator.runtime.connection import KUBECONFIG, connect, safe_description
from tensafe_operator.runtime.errors import ConfigurationError
from tensafe_operator.runtime.health import Health
from tensafe_operator.runtime.json_logs import JsonFormatter
from tensafe_operator.runtime.leader_election import LeaderElection
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensafe_operator.runtime.serving_certificate import ServingCertificate
from tensafe_operator.runtime.shutdown import Shutdown, TaskSupervisor
from tensafe_operator.settings import Settings, describe_variables, variable

RESTART = -1
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
    api = ApiClient(connection, resources, manager, metrics.count_request, lambda: election.leading)
    review_api = ApiClient(connection, resources, manager, metrics.count_request)  # also without the Lease
    gate = Gate(api, metrics.registry)
    health = Health(metrics, election, lambda: gate.problem)

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
            tasks.start("keeping the lease", election.keep())
            leader = Leader(api, settings, metrics, gate, lambda: election.leading)
            changes = await leader.start(tasks, health.heard, handle_signals)
            await tasks.wait_for_first()
        shutdown.start_deadline()
        _silence_kopf()
        # kopf cancels the tasks that were started after it, where one of its streams fails.
        ended = [each for each in changes if each.done() and not each.cancelled()]
        restart = not stop.is_set() and any(not each.exception() for each in ended)
        if restart:
            log.info(
                "the cluster has new kinds, other namespaces, or policies and CRDs again: reading everything again"
            )
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
