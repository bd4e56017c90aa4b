"""Reconciles one job: observes it, decides, applies one step, writes the status.

    observed (cache) ─► decide ─► irreversible? observe (API server) ─► decide ─► apply ─► write the status

`leading` takes the key of a job from the work queue and calls `Reconciler.reconcile`. Every cause leads here: a watch
event, a write of our own, an alarm, a retry, the periodic resync, a figure that the accountant has computed. No
decision is remembered between two calls.

A stale cache is safe. There is one leader, it handles a job once at a time, and its cache has its own writes. The names
of objects follow from the job and the attempt, and an existing object counts as created only if it is the job's. The
status is written under the version that was read, and an attempt starts only in a call after the one that recorded it.
The ledger fences attempts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Status
from tensafe_operator.accountant import Accountant
from tensafe_operator.apply import Refused, apply, write_status
from tensafe_operator.children import Manifest
from tensafe_operator.decision import decide
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.conditions import stalled_status
from tensafe_operator.decision.diagnosis import status_of_refusal
from tensafe_operator.decision.observation import Decision, Object, Observed
from tensafe_operator.observe import observe
from tensafe_operator.recent_writes import RecentWrites
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tensafe_operator.runtime.objects import Key
from tensafe_operator.settings import Settings


class Reconciler:
    """Reconciles jobs, one step per call.

    Args:
        api: client of the API server.
        accountant: computes the privacy figures that decisions ask for.
        learn: receives each object that the API server returned for a write, so that the cache can keep it.
        clock: returns the time, in seconds since the epoch.
    """

    def __init__(
        self,
        api: ApiClient,
        settings: Settings,
        accountant: Accountant,
        learn: Callable[[Manifest], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._settings, self._accountant = api, settings, accountant
        self._learn, self._clock = learn, clock
        self._recent = RecentWrites(clock)

    async def reconcile(self, key: Key, cached: Observed) -> float | None:
        """Take a job one step further.

        Args:
            cached: the job and its children as the cache has them.

        Returns:
            When to reconcile again at the latest, in seconds since the epoch: at once where an object was created or
            the status was written; None: when something changes. The queue retries, with a growing delay, what raises
            an exception.
        """
        observed = replace(cached, figures=self._accountant.known(key), kuberay=await self._api.knows("RayJob"))
        try:
            decision = self._decide(key, observed)
            if decision.irreversible:
                again = await observe(self._api, *key, observed)
                if again is None:
                    return None  # it is deleted: garbage collection removes its children, and its ledger stays
                observed, decision = again, self._decide(key, again)
            status, created, refused = decision.status, [], None
            actions = self._recent.without_recent(decision.actions)  # the resync brings back what is left out
            try:
                created = await apply(self._api, key[0], actions)
                self._recent.note(actions)
            except Refused as error:
                refused, status = error, status_of_refusal(observed.job, status, error.warning, self._clock())
            stored = await self._write(observed.job, status)
            for each in created:
                self._learn(each)
            if refused is not None:
                raise refused
            return self._clock() if stored or created else decision.wake
        except (ApiUnavailable, ApiError):
            raise  # also `Refused`, which the status shows
        except Exception as error:
            await self._report_failure(observed.job, error)
            raise

    def forget(self, key: Key) -> None:
        """Keep nothing about a job that does not exist any more."""
        self._accountant.forget(key)
        self._recent.forget(key[0])

    def _decide(self, key: Key, observed: Observed) -> Decision:
        decision = decide(observed, self._clock(), self._settings)
        self._accountant.ask(key, decision.figures)
        return decision

    async def report_problem(self, job: Object, problem: str) -> None:
        """Show a problem of the installation, because of which no job is reconciled, in the status of a job."""
        blocker = Blocker(Reason.GUARD_MISSING, "", problem)
        await self._write(job, stalled_status(job.get("status") or {}, blocker, self._clock()))

    async def _report_failure(self, job: Object, error: Exception) -> None:
        """Show in the status that the reconcile of this job failed. The text of the error may quote records."""
        what = f"The operator failed with {type(error).__name__} and retries; its log has the details"
        status = stalled_status(job.get("status") or {}, Blocker(Reason.INTERNAL_ERROR, "", what), self._clock())
        with contextlib.suppress(ApiUnavailable, ApiError):  # the queue logs the failure itself, and retries
            await self._write(job, status)

    async def _write(self, job: Object, status: Status) -> Manifest | None:
        stored = await write_status(self._api, job, status, self._clock())
        if stored is not None:
            self._learn(stored)
        return stored
