"""Whether this process is healthy and ready: `/healthz` and `/readyz` for the kubelet, `/metrics` for Prometheus.

All are served over plain HTTP, or over TLS with a certificate. `/metrics` is open, or needs a token where there is an
authorizer. The others are always open, because the kubelet has no token.

Healthy means three things. The event loop runs (an answer shows that; its lag is measured as well). The API server has
answered recently; since a quiet cluster sends no events, it is also polled. And a leader has renewed its Lease within
the Lease's duration. A process that loses the Lease ends by itself within that time, so an overdue renewal means that
it cannot even end.

Any pod may be able to reach the port. Clients that ask for metrics without end, or do not read them, must neither block
the event loop until the Lease is lost nor fill the memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tensafe_operator.runtime.authorization import NOT_ALLOWED, OK, UNAUTHENTICATED, Authorizer
from tensafe_operator.runtime.leader_election import LeaderElection
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensafe_operator.runtime.serving_certificate import ServingCertificate

POLL_SECONDS = 60.0
SILENT_SECONDS = 150.0
LAG_SECONDS = 5.0
_TICK_SECONDS = 1.0
METRICS_PATH = "/metrics"
METRICS_SHARE = 0.1
"""The largest share of its time that the event loop computes metrics. In between, clients get the last ones."""
ANSWER_SECONDS = 10.0
"""For how long a client may take to read the metrics. That is the time limit of a scrape by Prometheus."""
_CHUNK = 64 * 1024
"""Bytes of an answer that wait in memory for each client."""
_REFUSALS = {
    UNAUTHENTICATED: "send a token of this cluster: Authorization: Bearer TOKEN",
    NOT_ALLOWED: f"the user of the token needs the right to get the nonResourceURL {METRICS_PATH}",
}


class Health:
    """What is known of the health of this process.

    Args:
        unready: returns why a healthy process is not ready to work, in one sentence; empty if it is.
    """

    def __init__(
        self, metrics: OperatorMetrics, election: LeaderElection, unready: Callable[[], str] = lambda: ""
    ) -> None:
        self._metrics = metrics
        self._election = election
        self._unready = unready
        self._lag = 0.0
        self._page, self._page_until = b"", 0.0
        self.heard()

    def heard(self) -> None:
        """Note that the API server has answered or sent an event."""
        self._heard = time.monotonic()
        self._metrics.heard.set_to_current_time()

    def problem(self) -> str:
        """What is wrong, in one sentence; empty if the process is healthy."""
        if self._lag > LAG_SECONDS:
            return f"the event loop lags by {self._lag:.1f} s (limit {LAG_SECONDS:.0f} s)"
        if (unrenewed := self._election.unrenewed) > (limit := self._election.durations.lease):
            return f"the lease was last renewed {unrenewed:.0f} s ago (limit {limit} s)"
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

    def _metrics_page(self) -> bytes:
        """All metrics as text. With few jobs they are a hundredth of a second old at most, with 400 half a second."""
        before = time.monotonic()
        if before >= self._page_until:
            self._page = generate_latest(self._metrics.registry)
            now = time.monotonic()
            self._page_until = now + (now - before) / METRICS_SHARE
        return self._page

    async def serve(
        self, port: int, certificate: ServingCertificate | None = None, authorizer: Authorizer | None = None
    ) -> web.AppRunner:
        """Serve all endpoints on `port`. The caller calls `cleanup` of the returned runner.

        Args:
            certificate: to serve TLS alone; None: plain HTTP alone.
            authorizer: decides who may read the metrics; None: all clients may.

        Raises:
            OSError: if the port cannot be opened.
        """

        async def serve_metrics(request: web.Request) -> web.StreamResponse:
            if authorizer is not None:
                status = await authorizer.status(request.headers.get("Authorization", ""), METRICS_PATH)
                if status != OK:
                    headers = {"WWW-Authenticate": "Bearer"} if status == UNAUTHENTICATED else None
                    text = _REFUSALS.get(status, "the API server does not answer whether the token is allowed")
                    return web.Response(text=text, status=status, headers=headers)
            return await _send(request, self._metrics_page())

        async def serve_health(_: web.Request) -> web.Response:
            return _answer(self.problem())

        async def serve_readiness(_: web.Request) -> web.Response:
            return _answer(self.problem() or self._unready())

        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", serve_health),
                web.get("/readyz", serve_readiness),
                web.get(METRICS_PATH, serve_metrics),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            context = None if certificate is None else certificate.context
            await web.TCPSite(runner, port=port, ssl_context=context).start()
        except OSError:
            await runner.cleanup()
            raise
        return runner


def _answer(problem: str) -> web.Response:
    return web.Response(text=problem or "ok", status=503 if problem else 200)


async def _send(request: web.Request, page: bytes) -> web.StreamResponse:
    """Answer with a page of metrics, piece by piece, as fast as the client reads. One that is too slow is cut off."""
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
    response.content_length = len(page)
    body = page if request.method == "GET" else b""
    last = max(0, len(body) - _CHUNK)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await response.prepare(request)
            for start in range(0, last, _CHUNK):
                await response.write(body[start : min(start + _CHUNK, last)])
            await response.write_eof(body[last:])  # waits for the client, also where `write` was not needed
    except (TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
    return response
