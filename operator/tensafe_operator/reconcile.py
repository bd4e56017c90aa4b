"""One pass over one job: see, plan, look again where it is grave, act, and say when to come back.

observe (cache) ─► plan ─► grave? observe (API server) ─► plan ─► act ─► status
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from tensafe_operator.apply import RetryLater, apply, write_status
from tensafe_operator.children import Manifest
from tensafe_operator.event_recorder import of
from tensafe_operator.observe import observe
from tensafe_operator.plan import decide
from tensafe_operator.plan.admission import admit
from tensafe_operator.plan.conditions import status_of_failed_reconcile
from tensafe_operator.plan.observed import ClusterWarning, Decision, Object, Observed
from tensafe_operator.runtime.api_client import INVALID, ApiClient, ApiError, ApiUnavailable
from tensafe_operator.settings import Settings

log = logging.getLogger(__name__)
SOON_SECONDS = 5.0
Cache = Callable[[str, str], Observed | None]
"""What watching has shown of the job with this namespace and name."""


class Reconciler:
    """Reconciles jobs, one pass a call; it remembers nothing from one to the next."""

    def __init__(
        self,
        api: ApiClient,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        learn: Callable[[Manifest], object] = lambda document: None,
    ) -> None:
        self._api = api
        self._learn = learn
        self._settings = settings
        self._clock = clock
        self._aside, self._slow = asyncio.Lock(), asyncio.Lock()

    async def reconcile(self, namespace: str, name: str, cached: Observed | None = None) -> float | None:
        """Bring a job one step further.

        Args:
            cached: what watching has shown of it; without it the API server is asked at once.

        Returns:
            When to look again at the latest, in seconds since the epoch; None: when something changes.
        """
        seen = cached or await observe(self._api, namespace, name)
        if seen is None:
            return None  # garbage collection removes what it owned; its ledger stays
        try:
            return await self._pass(namespace, name, seen, look_again=cached is not None)
        except ApiUnavailable:
            raise  # it goes by
        except Exception as error:
            if isinstance(error, ApiError) and error.status != INVALID:
                raise
            await self._confess(seen.job, error)
            raise

    async def _pass(self, namespace: str, name: str, seen: Observed, look_again: bool) -> float | None:
        planned = await self._plan(seen)
        if planned.irreversible and look_again:
            again = await observe(self._api, namespace, name, seen.job)
            if again is None:
                return None
            seen, planned = again, await self._plan(again)
        return await self._go_on(seen, planned)

    async def _plan(self, seen: Observed) -> Decision:
        """The plan. The noise of a new job takes half a second to find: that is done aside, one job at a time. With PLD
        it takes up to a minute, and each ε up to seconds: those jobs wait for each other alone.
        """
        if seen.job["spec"]["privacy"].get("accountant") == "PLD":
            async with self._slow:
                return await asyncio.to_thread(decide, seen, self._clock(), self._settings)
        if seen.ledger is None:
            async with self._aside:
                await asyncio.to_thread(admit, seen.job)
        return decide(seen, self._clock(), self._settings)

    async def _go_on(self, seen: Observed, planned: Decision) -> float | None:
        """Act, and plan again on what the API server answers, as long as that leads to more.

        A job is begun in one go: its ledger is made, the ledger's UID and the attempt are stored, then the RayJob is
        made. What the API server answers is as good as another look: a ledger that nobody has claimed is one of a job
        for which nothing was ever run, and the status was written under the version that was looked at, so nothing else
        in the job has changed. Nobody but this process makes RayJobs, and it handles a job once at a time.
        """
        try:
            while True:
                made = await apply(self._api, seen, planned.actions)
                for each in made:
                    self._learn(each)
                ledger = next((each for each in made if each["kind"] == "PrivacyLedger"), None)
                if ledger is not None and ledger.get("status"):
                    return self._clock()  # it was there, and claimed: that is looked at anew
                if ledger is not None:
                    seen = replace(seen, ledger=ledger, kuberay=await self._api.knows("RayJob"))
                    planned = await self._plan(seen)
                    continue
                stored = await write_status(self._api, seen.job, planned.status, self._clock())
                if stored is not None:
                    self._learn(stored)
                if any(each["kind"] == "RayJob" for each in made):
                    return self._clock()  # it has begun: to say since when can wait until others have, too
                if not planned.irreversible or stored is None:
                    return planned.wake
                attempts = planned.status.attempts
                if not attempts or attempts[-1].end_time is not None:
                    return self._clock()  # what has ended is looked at anew
                seen = replace(seen, job=stored)
                planned = await self._plan(seen)
        except RetryLater as reason:
            if reason.refused is not None:
                with contextlib.suppress(RetryLater):  # the job has changed, and is looked at again
                    await self._tell(seen, reason.refused)
            return self._clock() + SOON_SECONDS

    async def _tell(self, seen: Observed, refused: ClusterWarning) -> None:
        """Let the status say what the API server would not make."""
        told = decide(replace(seen, warnings=(refused, *seen.warnings)), self._clock(), self._settings)
        await write_status(self._api, seen.job, told.status, self._clock())

    async def _confess(self, job: Object, error: Exception) -> None:
        """Let the status say that the pass failed, under the version that it began with: where the pass has written a
        status before it failed, the next one begins from that, and nobody writes in turns for ever.
        """
        try:
            told = status_of_failed_reconcile(job.get("status") or {}, type(error).__name__, self._clock())
            if told is not None and (stored := await write_status(self._api, job, told, self._clock())) is not None:
                self._learn(stored)
        except Exception as another:
            log.warning("nor can the status tell of it: %s", type(another).__name__, extra=of(job))
