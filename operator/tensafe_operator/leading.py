"""What the leader runs: it lists and watches the cluster, and handles the keys of the work queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from tensafe_operator import names
from tensafe_operator.accountant import Accountant
from tensafe_operator.decision.observation import ClusterWarning
from tensafe_operator.gate import Gate
from tensafe_operator.job_metrics import JobMetrics
from tensafe_operator.kinds import KINDS
from tensafe_operator.observe import observe_cached, parse_warning
from tensafe_operator.reconcile import Reconciler
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import FORBIDDEN, ApiError, ApiUnavailable
from tensafe_operator.runtime.cache import Cache
from tensafe_operator.runtime.errors import ConfigurationError
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensafe_operator.runtime.namespaces import report_namespaces, served_namespaces, wait_for_other_namespaces
from tensafe_operator.runtime.objects import Key
from tensafe_operator.runtime.resync import resync
from tensafe_operator.runtime.shutdown import TaskSupervisor
from tensafe_operator.runtime.watch import available_kinds, handlers, wait_for_new_kinds, watch
from tensafe_operator.runtime.work_queue import WorkQueue
from tensafe_operator.settings import Settings, variable

RESYNC_SECONDS = 300.0
FIRST_RESYNC_SECONDS = 15.0
"""After the start. No stream reports what was deleted after the first list and before the stream's own."""
RETRY_SECONDS = 1.0
WATCHING, RECONCILING = "watching", "reconciling"
log = logging.getLogger(__name__)


class Leader:
    """The work of the leader.

    Args:
        api: client of the API server.
        metrics: of the operator; its registry also gets those of the jobs and of the gate.
        leading: returns whether this process is still the leader.
    """

    def __init__(
        self, api: ApiClient, settings: Settings, metrics: OperatorMetrics, gate: Gate, leading: Callable[[], bool]
    ) -> None:
        self._api, self._settings, self._metrics, self._leading = api, settings, metrics, leading
        self._gate = gate
        self._cache = Cache[ClusterWarning](KINDS)
        self._queue = WorkQueue(lambda key: names.log_fields(*key))
        self._accountant = Accountant(self._queue.touch)
        self._reconciler = Reconciler(api, settings, self._accountant, self._cache.learn)
        self._job_metrics = JobMetrics(metrics.registry, per_job=settings.metrics_per_job)
        metrics.queue_depth.set_function(lambda: self._queue.depth)

    async def start(
        self, tasks: TaskSupervisor, heard: Callable[[], None], handle_signals: Callable[[], None]
    ) -> list[asyncio.Task[None]]:
        """Start to watch and reconcile.

        Args:
            heard: called at each event of a watched kind.
            handle_signals: installs the signal handlers again, because kopf replaces them.

        Returns:
            The tasks that end when everything has to be read again: the cluster has new kinds, other namespaces can be
            served, or the gate was closed for a time. None of them if a task has ended before everything was started.
        """
        known = await tasks.complete("discovering kinds", available_kinds(self._api, KINDS))  # before kopf does
        listed = await tasks.complete("listing", self._list()) if known else None
        if known is None or listed is None:
            return []
        served, namespaces = listed.result(), self._settings.namespaces
        report_namespaces(self._metrics, namespaces, served)
        tasks.start("computing privacy figures", self._accountant.run())
        tasks.start(RECONCILING, self._queue.run(self._handle))
        tasks.start("resyncing", self._resync_periodically(served))
        started = asyncio.Event()
        tasks.start(WATCHING, self._watch(served, heard, started))
        if not await tasks.complete("starting kopf", started.wait()):
            return []
        handle_signals()
        changes = [
            tasks.start("waiting for new kinds", wait_for_new_kinds(self._api, KINDS, known.result())),
            tasks.start("checking policies and CRDs", self._gate.wait_until_opened()),
        ]
        if namespaces:
            others = wait_for_other_namespaces(self._api, KINDS, namespaces, served)
            changes.append(tasks.start("waiting for other namespaces", others))
        return changes

    async def _handle(self, key: Key) -> float | None:
        if not self._leading():
            return time.time() + 1.0
        observed = observe_cached(self._cache, key)
        if observed is None:
            self._job_metrics.remove(key)
            self._queue.forget(key)
            self._reconciler.forget(key)
            return None
        try:
            with self._metrics.duration.time():
                if self._gate.problem:
                    await self._reconciler.report_problem(observed.job, self._gate.problem)
                    return None  # once the gate is open, everything is read again
                return await self._reconciler.reconcile(key, observed)
        except Exception:
            self._metrics.errors.inc()
            raise
        finally:
            if (job := self._cache.parent(key)) is not None:
                self._job_metrics.update(key, job)

    async def _list(self) -> frozenset[str]:
        """Check the gate, list all objects into the cache, and return the namespaces to watch (empty: all).

        While the API server prepares a new kind, lists are retried.

        Raises:
            ConfigurationError: if the operator lacks the right to list in all namespaces, or in each of its list.
        """
        while True:
            try:
                served = await served_namespaces(self._api, KINDS, self._settings.namespaces)
                await self._gate.check()  # before the list: older CRDs may be replaced while it is read
                await resync(self._api, self._cache, KINDS, served)
                return served
            except (ApiUnavailable, ApiError) as error:
                if isinstance(error, ApiError) and error.status == FORBIDDEN:
                    raise _not_allowed(self._settings, error) from error
                log.warning("the first list of all objects failed, retrying: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _resync_periodically(self, served: Collection[str]) -> None:
        before, pause = list[Key](), FIRST_RESYNC_SECONDS
        while True:
            for key in {*before, *self._cache.known_keys()}:  # also the jobs that the resync has dropped
                self._queue.touch(key)
            await asyncio.sleep(pause)
            before, pause = self._cache.known_keys(), RESYNC_SECONDS
            try:
                await resync(self._api, self._cache, KINDS, served)
            except (ApiUnavailable, ApiError) as error:
                log.warning("the resync failed, the next one is in %.0f s: %s", pause, error)

    async def _watch(self, served: frozenset[str], heard: Callable[[], None], started: asyncio.Event) -> None:
        registry = handlers(KINDS, self._cache, self._queue.touch, parse_warning, heard)
        try:
            await watch(registry, KINDS, served, started)
        except Exception:  # a stream of a deleted namespace is forbidden
            if await served_namespaces(self._api, KINDS, self._settings.namespaces) == served:
                raise
            await asyncio.Event().wait()  # the task that waits for other namespaces ends all tasks


def _not_allowed(settings: Settings, error: ApiError) -> ConfigurationError:
    found = f"is {','.join(settings.namespaces)}" if settings.namespaces else "is not set (all namespaces)"
    fix = "set it to the namespaces in the chart's value `namespaces`, which grants the rights"
    name = variable("namespaces")
    return ConfigurationError(f"{name} {found}, but the operator may not list all objects there ({error}): {fix}.")
