"""Is this process well? What a kubelet asks (`/healthz`), and what Prometheus reads (`/metrics`).

Well means: the event loop turns (the answer itself shows it, and a lag is measured), the API server said something
lately, and who leads has renewed its Lease for less than its duration ago. A quiet cluster sends no events, so the API
server is asked now and then. Who loses the Lease ends within it: one that is found ill for that cannot even end.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from prometheus_client import generate_latest

from tensafe_operator.runtime.api_client import ApiClient, ApiError, ApiUnavailable
from tensafe_operator.runtime.leader_election import LEASE_SECONDS, NAME, LeaderElection
from tensafe_operator.runtime.metrics import Metrics

PROBE_SECONDS = 60.0
SILENT_SECONDS = 150.0
LAG_SECONDS = 5.0
_TICK = 1.0


class Health:
    """What is known of this process' health."""

    def __init__(self, metrics: Metrics, lease: LeaderElection) -> None:
        self._metrics = metrics
        self._lease = lease
        self._lag = 0.0
        self.heard()

    def heard(self) -> None:
        """The API server has said something."""
        self._heard = time.monotonic()
        self._metrics.heard.set_to_current_time()

    def illness(self) -> str:
        """What is wrong, in a few words; empty where nothing is."""
        if self._lag > LAG_SECONDS:
            return f"the event loop lags by {self._lag:.1f} s"
        if (unrenewed := self._lease.unrenewed) > LEASE_SECONDS:
            return f"the lease was last renewed {unrenewed:.0f} s ago"
        silent = time.monotonic() - self._heard
        return f"nothing was heard of the API server for {silent:.0f} s" if silent > SILENT_SECONDS else ""

    async def listen(self, api: ApiClient, namespace: str) -> None:
        """Measure the loop's lag, and ask the API server now and then, until cancelled."""
        asked = 0.0
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK)
            self._lag = max(0.0, time.monotonic() - before - _TICK)
            self._metrics.lag.set(self._lag)
            if time.monotonic() - asked > PROBE_SECONDS:
                asked = time.monotonic()
                try:
                    await api.get("Lease", namespace, NAME)
                    self.heard()
                except (ApiUnavailable, ApiError):
                    pass

    async def serve(self, port: int) -> web.AppRunner:
        """Answer on `port`; the caller cleans the runner up.

        Raises:
            OSError: where the port cannot be had.
        """
        app = web.Application()
        app.add_routes([web.get("/healthz", self._healthz), web.get("/metrics", self._show)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=port).start()
        except OSError:
            await runner.cleanup()
            raise
        return runner

    async def _healthz(self, _: web.Request) -> web.Response:
        illness = self.illness()
        return web.Response(text=illness or "ok", status=503 if illness else 200)

    async def _show(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), content_type="text/plain")
