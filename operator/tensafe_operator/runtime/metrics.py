"""Prometheus metrics about the operator itself. The caller adds its own to the same registry."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """The metrics of one operator, in a registry that no other code shares.

    Args:
        prefix: first part of all names, without the underscore that follows it.
    """

    def __init__(self, prefix: str) -> None:
        self.registry = CollectorRegistry()
        shared: Any = {"registry": self.registry, "namespace": prefix}
        self.duration = Histogram("reconcile_duration_seconds", "Duration of one reconcile.", **shared)
        self.errors = Counter("reconcile_errors_total", "Reconciles that failed and are retried.", **shared)
        self.queue_depth = Gauge("work_queue_depth", "Objects that wait for their reconcile.", **shared)
        self.leading = Gauge("leading", "1 while this process is the leader.", **shared)
        self.lag = Gauge("event_loop_lag_seconds", "Delay of the event loop at the last measurement.", **shared)
        self.heard = Gauge(
            "api_last_heard_timestamp_seconds", "When the API server last answered or sent an event.", **shared
        )
        self.namespace_served = Gauge(
            "namespace_served",
            "1 for a namespace of the operator's list in which it runs jobs, 0 for one that does not exist or that it "
            "may not list.",
            ("namespace",),
            **shared,
        )
        self._requests = Counter(
            "api_requests_total",
            "Requests to the API server, without watches; the code is 0 if there was no answer.",
            ("method", "code"),
            **shared,
        )

    def count_request(self, method: str, code: int) -> None:
        """Count a request to the API server. Code 0: it did not answer."""
        self._requests.labels(method, str(code)).inc()
