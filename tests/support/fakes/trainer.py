"""A fake of the trainer's rank 0 on a real API server: it acquires a job's ledger and charges steps.

The admission policy accepts a write to a ledger only from the pod that acquired it. So the fake writes either with that
pod's own token, or as an administrator who impersonates the pod's service account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.fakes import statuses
from tests.support.programs.api_server import RESOURCES, ApiServer, Object, User


class FakeRank0:
    """Rank 0 of a job's first attempt.

    Args:
        server: connection with the pod's token, or an administrator's.
        pod_uid: UID of the pod that rank 0 runs in.
        user: user to impersonate, where the connection is an administrator's.
        clock: time of each write; None: the ledger gets no time of the last step.
    """

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        ledger: str,
        pod_uid: str,
        *,
        user: User | None = None,
        clock: Callable[[], str] | None = statuses.now,
    ) -> None:
        self._server, self._user, self._pod_uid, self._clock = server, user, pod_uid, clock
        self._path = RESOURCES["PrivacyLedger"].path(namespace, ledger)
        self._ledger: Object = {}
        self._lock = asyncio.Lock()
        self.steps = 0
        """Steps charged so far."""

    async def charge(self, steps: int) -> None:
        """Charge so many more steps, and acquire the ledger first if that has not happened."""
        async with self._lock:
            await self._write(self.steps + steps, {})

    async def charge_through(self, steps: int, **more: Any) -> None:
        """Charge up to so many steps in all, and write further fields of the ledger's status, such as `outcome`."""
        async with self._lock:
            await self._write(steps, more)

    async def _write(self, steps: int, more: Mapping[str, Any]) -> None:
        ledger = self._ledger or await self._server.request("GET", self._path, user=self._user)
        length = 1 + (ledger.get("status") or {}).get("length", 0)
        time = self._clock() if self._clock else None
        self.steps = steps
        ledger["status"] = statuses.charged(steps, self._pod_uid, length=length, last_update_time=time, **more)
        self._ledger = await self._server.request("PUT", f"{self._path}/status", ledger, user=self._user)
