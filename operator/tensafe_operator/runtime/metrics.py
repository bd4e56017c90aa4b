"""What Prometheus sees: of each job its phase, charges and ε (all of them public), and how the operator itself does.

A job's series are those of its status as it is: a series of a phase or a reason that has passed goes, and all go with
the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tensafe_api.reasons import ConditionType
from tensafe_operator.runtime.cache import Key

_JOB = ("namespace", "job")
_INFO = ("uid", "ledger", "unit", "accountant")
_Series = tuple[Gauge, tuple[str, ...]]


class Metrics:
    """The series of one operator, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: Any = {"registry": self.registry}
        self._info = Gauge("tensafe_job_info", "1; who the job is.", (*_JOB, *_INFO), **own)
        self._phase = Gauge("tensafe_job_phase", "1 for the phase that a job is in.", (*_JOB, "phase"), **own)
        self._stalled = Gauge("tensafe_job_stalled", "1 while a job waits for somebody.", (*_JOB, "reason"), **own)
        self._charged = Gauge("tensafe_job_steps_charged_total", "Steps charged over all attempts.", _JOB, **own)
        self._epsilon = Gauge("tensafe_job_privacy_epsilon", "Epsilon of the charged steps.", _JOB, **own)
        self._limit = Gauge("tensafe_job_privacy_epsilon_limit", "Epsilon that must not be exceeded.", _JOB, **own)
        self._shown: dict[Key, dict[_Series, float]] = {}
        self.duration = Histogram("tensafe_reconcile_duration_seconds", "Time of one pass over a job.", **own)
        self.errors = Counter("tensafe_reconcile_errors_total", "Passes that failed and are tried again.", **own)
        self.leading = Gauge("tensafe_leading", "1 while this process is the operator at work.", **own)
        self.lag = Gauge("tensafe_event_loop_lag_seconds", "By how much the event loop was late last.", **own)
        self.heard = Gauge(
            "tensafe_api_last_heard_timestamp_seconds", "When the API server last answered or sent an event.", **own
        )
        self._requests = Counter(
            "tensafe_api_requests_total",
            "Requests to the API server; the code is 0 where none came back. Watches are not among them.",
            ("method", "code"),
            **own,
        )

    def answered(self, method: str, code: int) -> None:
        """Count a request."""
        self._requests.labels(method, str(code)).inc()

    def show(self, key: Key, job: Mapping[str, Any]) -> None:
        """Let the series of a job say what its status says."""
        self._replace(key, self._series(key, job))

    def forget(self, key: Key) -> None:
        """A job is gone, and its series with it."""
        self._replace(key, {})

    def _series(self, key: Key, job: Mapping[str, Any]) -> dict[_Series, float]:
        status = job.get("status") or {}
        privacy = status.get("privacy") or {}
        info = (job["metadata"]["uid"], status.get("ledgerName"), privacy.get("unit"), privacy.get("accountant"))
        series: dict[_Series, float] = {
            (self._info, (*key, *(str(each or "") for each in info))): 1,
            (self._phase, (*key, str(status.get("phase") or "Pending"))): 1,
            (self._charged, key): privacy.get("stepsCharged") or 0,
            (self._epsilon, key): float(privacy.get("epsilonSpent") or 0),
            (self._limit, key): float(privacy.get("targetEpsilon") or 0),
        }
        for condition in status.get("conditions") or ():
            if condition["type"] == ConditionType.STALLED.value and condition["status"] == "True":
                series[self._stalled, (*key, condition["reason"])] = 1
        return series

    def _replace(self, key: Key, series: dict[_Series, float]) -> None:
        before = self._shown.pop(key, {})
        for gauge, labels in before.keys() - series.keys():
            gauge.remove(*labels)
        for (gauge, labels), value in series.items():
            if before.get((gauge, labels)) != value:
                gauge.labels(*labels).set(value)
        if series:
            self._shown[key] = series
