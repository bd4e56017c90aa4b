"""What Prometheus sees: of each job its phase, charges and ε (all of them public), and how the operator itself does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tensafe_api.reasons import Phase
from tensafe_operator.cache import Key

_JOB = ("namespace", "job")


class Metrics:
    """The series of one operator, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: Any = {"registry": self.registry}
        self._phase = Gauge("tensafe_job_phase", "1 for the phase that a job is in.", (*_JOB, "phase"), **own)
        self._charged = Gauge("tensafe_job_steps_charged_total", "Steps charged over all attempts.", _JOB, **own)
        self._epsilon = Gauge("tensafe_job_privacy_epsilon", "Epsilon of the charged steps.", _JOB, **own)
        self._limit = Gauge("tensafe_job_privacy_epsilon_limit", "Epsilon that must not be exceeded.", _JOB, **own)
        self.duration = Histogram("tensafe_reconcile_duration_seconds", "Time of one pass over a job.", **own)
        self.errors = Counter("tensafe_reconcile_errors_total", "Passes that failed and are tried again.", **own)
        self.leading = Gauge("tensafe_leading", "1 while this process is the operator at work.", **own)

    def show(self, key: Key, status: Mapping[str, Any]) -> None:
        """Let the series of a job say what its status says."""
        for phase in Phase:
            self._phase.labels(*key, phase.value).set(status.get("phase") == phase.value)
        privacy = status.get("privacy") or {}
        self._charged.labels(*key).set(privacy.get("stepsCharged") or 0)
        self._epsilon.labels(*key).set(float(privacy.get("epsilonSpent") or 0))
        self._limit.labels(*key).set(float(privacy.get("targetEpsilon") or 0))

    def forget(self, key: Key) -> None:
        """A job is gone, and its series with it."""
        for phase in Phase:
            self._drop(self._phase, *key, phase.value)
        for series in (self._charged, self._epsilon, self._limit):
            self._drop(series, *key)

    def _drop(self, series: Gauge, *labels: str) -> None:
        with contextlib.suppress(KeyError):  # it was never shown
            series.remove(*labels)
