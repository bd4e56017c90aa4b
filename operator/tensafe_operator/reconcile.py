"""One pass over one job: see, plan, look again where it is grave, act, and say when to come back.

observe (cache) ─► plan ─► grave? observe (API server) ─► plan ─► act ─► status
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from tensafe_operator.act import NotYet, act, write_status
from tensafe_operator.api import Api
from tensafe_operator.observe import observe
from tensafe_operator.plan import plan
from tensafe_operator.plan.observed import Observed, Warned
from tensafe_operator.settings import Settings

SOON_SECONDS = 5.0
Cache = Callable[[str, str], Observed | None]
"""What watching has shown of the job with this namespace and name."""


class Reconciler:
    """Reconciles jobs, one pass a call; it remembers nothing from one to the next."""

    def __init__(self, api: Api, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock

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
        planned = plan(seen, self._clock(), self._settings)
        if planned.grave and cached is not None:
            seen = await observe(self._api, namespace, name)
            if seen is None:
                return None
            planned = plan(seen, self._clock(), self._settings)
        try:
            await act(self._api, seen, planned, self._clock())
        except NotYet as reason:
            if reason.refused is not None:
                with contextlib.suppress(NotYet):  # the job has changed, and is looked at again
                    await self._tell(seen, reason.refused)
            return self._clock() + SOON_SECONDS
        return planned.wake

    async def _tell(self, seen: Observed, refused: Warned) -> None:
        """Let the status say what the API server would not make."""
        told = plan(replace(seen, warnings=(refused, *seen.warnings)), self._clock(), self._settings)
        await write_status(self._api, seen.job, told.status, self._clock())
