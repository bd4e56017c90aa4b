"""Whether this process is healthy: `/healthz` for the kubelet, `/metrics` for Prometheus.

Healthy means three things. The event loop runs (an answer shows that; its lag is measured as well). The API server has
answered recently; since a quiet cluster sends no events, it is also polled. And a leader has renewed its Lease within
the Lease's duration. A process that loses the Lease ends by itself within that time, so an overdue renewal means that
it cannot even end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import generate_latest

from tensafe_operator.runtime.api_client import ApiError, ApiUnavailable
from tensafe_operator.runtime.leader_election import LEASE_SECONDS, LeaderElection
from tensafe_operator.runtime.metrics import OperatorMetrics

POLL_SECONDS = 60.0
SILENT_SECONDS = 150.0
LAG_SECONDS = 5.0
_TICK_SECONDS = 1.0


class Health:
    """What is known of the health of this process."""

    def __init__(self, metrics: OperatorMetrics, election: LeaderElection) -> None:
        self._metrics = metrics
        self._election = election
        self._lag = 0.0
        self.heard()

    def heard(self) -> None:
        """Note that the API server has answered or sent an event."""
        self._heard = time.monotonic()
        self._metrics.heard.set_to_current_time()

    def problem(self) -> str:
        """What is wrong, in one sentence; empty if the process is healthy."""
        if self._lag > LAG_SECONDS:
            return f"the event loop lags by {self._lag:.1f} s (limit {LAG_SECONDS:.0f} s)"
        if (unrenewed := self._election.unrenewed) > LEASE_SECONDS:
            return f"the lease was last renewed {unrenewed:.0f} s ago (limit {LEASE_SECONDS} s)"
        silent = time.monotonic() - self._heard
        if silent > SILENT_SECONDS:
            return f"no answer and no event from the API server for {silent:.0f} s (limit {SILENT_SECONDS:.0f} s)"
        return ""

    async def monitor(self, poll: Callable[[], Awaitable[object]]) -> None:
        """Measure the lag of the event loop and poll the API server, until cancelled.

        Args:
            poll: sends one cheap request to the API server.
        """
        polled = 0.0
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK_SECONDS)
            self._lag = max(0.0, time.monotonic() - before - _TICK_SECONDS)
            self._metrics.lag.set(self._lag)
            if time.monotonic() - polled > POLL_SECONDS:
                polled = time.monotonic()
                try:
                    await poll()
                    self.heard()
                except (ApiUnavailable, ApiError):
                    pass

    async def serve(self, port: int) -> web.AppRunner:
        """Serve both endpoints on `port`. The caller calls `cleanup` of the returned runner.

        Raises:
            OSError: if the port cannot be opened.
        """
        app = web.Application()
        app.add_routes([web.get("/healthz", self._serve_health), web.get("/metrics", self._serve_metrics)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=port).start()
        except OSError:
            await runner.cleanup()
            raise
        return runner

    async def _serve_health(self, _: web.Request) -> web.Response:
        problem = self.problem()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), content_type="text/plain")
