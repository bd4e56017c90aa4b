"""Prometheus metrics of each job: phase, charges and ε. All of these figures are public.

The series of a job follow its status. The series of an earlier phase or reason is removed, and all series of a job are
removed with the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from tensafe_api.reasons import ConditionType
from tensafe_operator.names import METRICS_PREFIX
from tensafe_operator.runtime.objects import Key

# OpenMetrics has a second series for each counter: the time at which it was created.
disable_created_metrics()  # type: ignore[no-untyped-call]
_JOB = ("namespace", "job")
_INFO = ("uid", "ledger", "unit", "accountant")
_Series = tuple[Gauge | Counter, tuple[str, ...]]


class JobMetrics:
    """The metrics of all jobs, registered in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, documentation: str, *labels: str) -> Gauge:
            return Gauge(name, documentation, (*_JOB, *labels), namespace=METRICS_PREFIX, registry=registry)

        self._info = gauge("job_info", "1; the labels identify the job.", *_INFO)
        self._phase = gauge("job_phase", "1 for the current phase of the job.", "phase")
        self._stalled = gauge("job_stalled", "1 while the job is stalled until a user acts.", "reason")
        self._charged = Counter(
            "job_steps_charged",
            "Steps charged over all attempts.",
            _JOB,
            namespace=METRICS_PREFIX,
            registry=registry,
        )
        self._epsilon = gauge("job_privacy_epsilon", "Epsilon of the charged steps.")
        self._limit = gauge("job_privacy_epsilon_limit", "Epsilon that must not be exceeded.")
        self._exported: dict[Key, dict[_Series, float]] = {}

    def update(self, key: Key, job: Mapping[str, Any]) -> None:
        """Export the series of a job according to its status."""
        self._replace(key, self._series(key, job))

    def remove(self, key: Key) -> None:
        """Remove all series of a job that was deleted."""
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
        before = self._exported.pop(key, {})
        for metric, labels in before.keys() - series.keys():
            metric.remove(*labels)
        for (metric, labels), value in series.items():
            known = before.get((metric, labels))
            if isinstance(metric, Counter):
                series[metric, labels] = max(value, known or 0.0)  # a status can be older than the last one
                metric.labels(*labels).inc(series[metric, labels] - (known or 0.0))
            elif known != value:
                metric.labels(*labels).set(value)
        if series:
            self._exported[key] = series
