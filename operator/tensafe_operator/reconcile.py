"""Reconciles one job: observes it, decides, applies the decision, and returns when to reconcile again.

    observe (cache) ─► decide ─► irreversible? observe (API server) ─► decide ─► apply ─► write the status

Every cause leads here: a watch event, an alarm, a retry, the periodic resync. Nothing is remembered between two calls,
except how often an object was brought back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from tensafe_api.long_computations import LongComputationError, limited_computations, only_short_computations
from tensafe_api.reasons import ConditionType, Phase
from tensafe_api.resources.ledger import LEDGER_KIND
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import parse_time
from tensafe_operator.apply import DeletionRefused, RetryLater, apply, report_unwritable, write_status
from tensafe_operator.children import Manifest
from tensafe_operator.corrections import Corrections
from tensafe_operator.event_recorder import job_fields
from tensafe_operator.kinds import KINDS
from tensafe_operator.observe import observe, observe_profile
from tensafe_operator.plan import decide
from tensafe_operator.plan.conditions import status_of_failed_reconcile
from tensafe_operator.plan.diagnosis import status_of_refusal
from tensafe_operator.plan.ledger import LEDGER_SHORTENED, count_after_failure, ledger_is_shortened
from tensafe_operator.plan.observed import ClusterWarning, Create, Decision, Object, Observed
from tensafe_operator.plan.parsing import object_condition
from tensafe_operator.plan.privacy_status import has_fallen
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import BAD_REQUEST, INVALID, ApiError, ApiUnavailable
from tensafe_operator.runtime.work_queue import COMPUTATIONS, LONGEST_RETRY_SECONDS, TakesLong
from tensafe_operator.served_fields import FieldsDropped, LedgerShortened, lost_field, why_dropped
from tensafe_operator.settings import Settings

T = TypeVar("T")
log = logging.getLogger(__name__)
RETRY_SECONDS, DROPPED_SECONDS, SHORTENED_SECONDS = 5.0, 30.0, 600.0
BEGIN_SECONDS = 2.0
"""Before a job begins something, policies and CRDs are read again, unless they were so many seconds ago."""
ANSWER_SECONDS = 2.0
"""For how long a new RayJob waits for KubeRay's first status, so that one write of the job's status reports both."""

COMPUTING_SECONDS, FIGURES = 10.0, 8
"""A turn of a job computes figures for so long, and so many at least: more than are new while a job trains. With fewer,
a job whose ledger changes faster than its figures are computed would never be decided on."""


class Guarded(Protocol):
    """`LedgerGuard.is_present`."""

    async def __call__(self, *, within: float | None = None) -> bool: ...


class Reconciler:
    """Reconciles jobs, one job per call.

    Args:
        api: client of the API server.
        settings: the operator's settings.
        clock: returns the time, in seconds since the epoch.
        learn: receives each object that the API server returned for a write, so that the cache can keep it.
        guarded: returns whether the rules that protect ledgers are in force, or raises FieldsDropped.
    """

    def __init__(
        self,
        api: ApiClient,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        learn: Callable[[Manifest], object] = lambda document: None,
        *,
        guarded: Guarded,
    ) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self._learn = learn
        self._guarded = guarded
        self._corrections = Corrections(clock)
        self._threads = ThreadPoolExecutor(COMPUTATIONS, "accounting")  # nothing else may occupy them

    async def reconcile(
        self, namespace: str, name: str, cached: Observed | None = None, *, patient: bool = True
    ) -> float | None:
        """Take a job as far as possible now.

        A new job starts in one call (docs/decisions/0010-start-a-job-in-one-pass.md). The ledger is created, its UID
        and the attempt are stored in the status, then the RayJob is created. In between, the answers of the API server
        serve as a new observation. That is safe for three reasons. A ledger that was never acquired belongs to a job
        that has never run. The status was written under the observed version, so nothing else in the job has changed.
        Only this process creates RayJobs, and it reconciles a job once at a time.

        Args:
            cached: the job as the cache has it. None: it is read from the API server.
            patient: whether to compute in a thread what takes long, within the limits of a turn.

        Returns:
            When to reconcile again at the latest, in seconds since the epoch. None: when something changes.

        Raises:
            TakesLong: a figure has to be computed that takes long, and the call is not patient, or its turn has ended.
                What was done until then is kept.
        """
        observed = cached or await observe(self._api, namespace, name)
        if observed is None:
            return None  # the job is deleted: garbage collection removes its children, and its ledger stays
        try:
            return await self._take_further(observed, cached is not None, patient)
        except FieldsDropped as dropped:
            shortened = isinstance(dropped, LedgerShortened)  # for good, so it is read again rarely
            await report_unwritable(self._api, observed.job, dropped, self._clock(), varies=not shortened)
            return self._clock() + (SHORTENED_SECONDS if shortened else DROPPED_SECONDS)

    async def _take_further(self, observed: Observed, is_cached: bool, patient: bool) -> float | None:
        guarded = await self._guarded()
        observed = replace(observed, guarded=guarded)
        async with self._failure_in_status(observed, patient):
            if ledger_is_shortened(observed):  # nothing can be decided
                guarded = await self._guarded(within=0.0)
                again = await self._read_again(observed, guarded) if is_cached else observed
                if again is None:
                    return None
                if ledger_is_shortened(again):
                    raise LedgerShortened(LEDGER_SHORTENED)
                observed, is_cached = again, False
            decision = await self._decide(observed, patient)
            fallen = has_fallen(observed.job.get("status") or {}, decision.status)
            if decision.irreversible or fallen or _opens_ledger(decision):
                guarded = await self._guarded(within=0.0 if fallen else BEGIN_SECONDS)
            if (decision.irreversible or fallen) and is_cached:
                again = await self._read_again(observed, guarded)
                if again is None:
                    return None
                if ledger_is_shortened(again):
                    # It was read under older CRDs, in the seconds for which the guard's answer is used; or it was
                    # written just now, and the cache gets it next.
                    await self._guarded(within=0.0)
                    return self._clock() + RETRY_SECONDS
                observed = again
                decision = await self._decide(observed, patient)
            elif guarded != observed.guarded:
                observed = replace(observed, guarded=guarded)
                decision = await self._decide(observed, patient)
            try:
                while True:
                    stalled = object_condition(observed.job, ConditionType.STALLED).get("message") or ""
                    allowed = self._corrections.allowed(decision.actions, stalled)
                    count = self._corrections.count if allowed.corrects else None
                    made = await apply(self._api, observed, allowed.actions, count)
                    created = {each["kind"]: each for each in made}
                    for each in created.values():
                        self._learn(each)
                    if ledger := created.get(LEDGER_KIND):
                        if ledger.get("status"):
                            return self._clock()  # it existed and was acquired: observe again
                        kuberay = await self._api.knows("RayJob")
                        profile = await observe_profile(self._api, observed.job)
                        observed = replace(observed, ledger=ledger, kuberay=kuberay, profile=profile)
                        if ledger_is_shortened(observed):
                            raise LedgerShortened(LEDGER_SHORTENED)
                        decision = await self._decide(observed, patient)
                        continue  # the status of this decision records the ledger's UID
                    if allowed.left:
                        warned = replace(observed, warnings=(*allowed.left, *observed.warnings))
                        decision = replace(decision, status=(await self._decide(warned, patient)).status)
                    stored = await self._write_status(observed.job, decision.status)
                    self._corrections.show(observed.job["metadata"]["namespace"], allowed.left)
                    if "RayJob" in created:
                        return self._clock() + ANSWER_SECONDS
                    if stored is None or not decision.irreversible:
                        return min((each for each in (decision.wake, allowed.until) if each is not None), default=None)
                    if not _has_open_attempt(decision.status):
                        return self._clock()  # an attempt has ended: observe again
                    observed = replace(observed, job=stored)
                    decision = await self._decide(observed, patient)  # creates the RayJob of the recorded attempt
            except RetryLater as blocked:
                if blocked.warning is not None:
                    is_deletion = isinstance(blocked, DeletionRefused)
                    await self._report_warning(observed, blocked.warning, patient, deletion=is_deletion)
                if isinstance(blocked.__cause__, ApiUnavailable):
                    raise blocked.__cause__ from None  # the delay grows: each request may take its time limit
                return self._clock() + _retry_seconds(observed.job, blocked, self._clock())

    async def _read_again(self, cached: Observed, guarded: bool) -> Observed | None:
        """The job and its children from the API server; None if the job is deleted. The cache may hold what the API
        server returned while it dropped fields.
        """
        metadata = cached.job["metadata"]
        again = await observe(self._api, metadata["namespace"], metadata["name"], cached)
        if again is None:
            return None
        _check_spec(cached.job, again.job)
        return replace(again, guarded=guarded)

    async def compute(self, cached: Observed) -> bool:
        """Compute in a thread what the next reconcile of a job needs, so that it is cached.

        Returns:
            Whether anything was missing. The figures of a job are often those of another one.

        Raises:
            TakesLong: the turn has ended, and something is missing still.
        """
        try:
            observed = replace(cached, guarded=await self._guarded())
        except FieldsDropped:
            return False  # nothing may be computed
        try:
            await self._decide(observed, patient=False)
        except TakesLong:
            await self._decide(observed, patient=True)
            return True
        return False

    async def _decide(self, observed: Observed, patient: bool) -> Decision:
        """The decision. Long accounting runs in a thread, so that it blocks neither the Lease nor other jobs.

        Calibrating the noise of a new job takes up to ten seconds. With PLD, the default accountant, a new ε takes a
        tenth of a second up to three seconds. All figures are cached, so that most decisions take a few milliseconds.
        """
        many_pods = len(observed.pods) > KINDS.kept["Pod"]  # so many come from the API server alone
        call = partial(decide, observed, self._clock(), self._settings)
        return await self._computed(observed.job, patient, call, in_thread=many_pods)

    async def _computed(self, job: Object, patient: bool, call: Callable[[], T], *, in_thread: bool = False) -> T:
        """The result of a call that may compute long for a job. Raises TakesLong, see `reconcile`."""

        def limited() -> T:
            limits = limited_computations(seconds=COMPUTING_SECONDS, at_least=FIGURES)
            with limits if patient else only_short_computations():
                return call()

        try:
            if patient:
                return await asyncio.get_running_loop().run_in_executor(self._threads, limited)
            return await asyncio.to_thread(limited) if in_thread else limited()
        except LongComputationError as error:
            raise TakesLong(str(error), group=_group(job)) from error

    async def _write_status(self, job: Object, status: Status) -> Manifest | None:
        stored = await write_status(self._api, job, status, self._clock())
        if stored is not None:
            self._learn(stored)
        return stored

    async def _report_warning(
        self, observed: Observed, warning: ClusterWarning, patient: bool, *, deletion: bool
    ) -> None:
        """Show in the status what the API server refused to create, to bring back or to delete."""
        decided_on = observed if deletion else replace(observed, warnings=(warning, *observed.warnings))
        decided = (await self._decide(decided_on, patient)).status
        status: Status | None = decided
        if deletion:
            status = status_of_refusal(observed.job.get("status") or {}, decided, warning, self._clock())
        if status is None:
            return
        with contextlib.suppress(RetryLater):  # the job has changed, so it is reconciled again
            await self._write_status(observed.job, status)

    @contextlib.asynccontextmanager
    async def _failure_in_status(self, observed: Observed, patient: bool) -> AsyncIterator[None]:
        """Show in the status that the reconcile of this job failed, and raise the error again.

        An unavailable API server, a refused request and a long computation are not failures. An object that the API
        server itself finds invalid is.
        """
        try:
            yield
        except (ApiUnavailable, TakesLong, FieldsDropped):
            raise
        except Exception as error:
            if not isinstance(error, ApiError) or (error.status == INVALID and not error.by_policy):
                await self._report_failure(observed, error, patient)
            raise

    async def _report_failure(self, observed: Observed, error: Exception, patient: bool) -> None:
        """Write the failure into the status, and count what the ledger was charged.

        The status is written under the version of the job that the reconcile started with. If the reconcile has written
        a status before it failed, this write is refused, and the next reconcile starts from the newer status. Otherwise
        both statuses would replace each other for ever.
        """
        job = observed.job
        try:
            status = status_of_failed_reconcile(job.get("status") or {}, type(error).__name__, self._clock())
            with contextlib.suppress(ArithmeticError, ValueError):  # the failure may be that of a privacy figure
                counted = await self._computed(job, patient, partial(count_after_failure, status, observed.ledger))
                status = status if has_fallen(job.get("status") or {}, counted) else counted
            await self._write_status(job, status)
        except TakesLong:
            raise
        except Exception as another:
            log.warning("the status cannot report this failure: %s", type(another).__name__, extra=job_fields(job))


def _retry_seconds(job: Object, blocked: RetryLater, now: float) -> float:
    """After how long to try again. An invalid object mostly stays so until its job changes, which is handled at once.
    Such a wait is as long as the job has been stalled already, within bounds.
    """
    cause, stalled = blocked.__cause__, object_condition(job, ConditionType.STALLED)
    if not isinstance(cause, ApiError) or cause.status not in (BAD_REQUEST, INVALID) or stalled.get("status") != "True":
        return RETRY_SECONDS
    since = parse_time(stalled.get("lastTransitionTime")) or now
    return min(max(now - since, RETRY_SECONDS), LONGEST_RETRY_SECONDS)


def _group(job: Object) -> str:
    """The jobs that take turns where figures have to be computed: a new job needs a calibration, one that has begun an
    ε, and after a restart of the operator each needs one for each checkpoint, also if it has ended.
    """
    status = job.get("status") or {}
    if Phase(status.get("phase") or Phase.PENDING).final:
        return "ended"
    return "begun" if status.get("ledgerUID") else "new"


def _check_spec(cached: Object, read: Object) -> None:
    """Check that a job has not lost fields of its spec since it was cached, except by a change of its author.

    Raises:
        FieldsDropped: the API server has read it under older CRDs. What is decided on the rest would be wrong.
    """
    if cached["metadata"].get("generation") != read["metadata"].get("generation"):
        return
    if lost := lost_field(cached["spec"], read["spec"], "spec"):
        raise FieldsDropped.because(why_dropped(lost))


def _opens_ledger(decision: Decision) -> bool:
    return any(isinstance(each, Create) and each.manifest["kind"] == LEDGER_KIND for each in decision.actions)


def _has_open_attempt(status: Status) -> bool:
    return bool(status.attempts) and status.attempts[-1].end_time is None
