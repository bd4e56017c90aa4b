"""Prometheus metrics of all jobs, from the rows of `job_series.JOB_SERIES`.

The series of a job follow its status, and are removed with the job. They are computed when a job changes, and put
together when Prometheus asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tensafe_operator.job_series import JOB_SERIES, Job, JobSeries
from tensafe_operator.names import METRICS_PREFIX
from tensafe_operator.runtime.objects import Key

# OpenMetrics has a second series for each counter: the time at which it was created.
disable_created_metrics()  # type: ignore[no-untyped-call]
_Family = GaugeMetricFamily | CounterMetricFamily
_JOB, _GROUP = ("namespace", "job"), ("namespace", "phase")
_OVER_JOBS = {"add": "Sum over the jobs", "min": "Lowest value of a job", "max": "Highest value of a job"}


@dataclass(frozen=True)
class _Exported:
    uid: str
    phase: str
    values: dict[tuple[JobSeries, tuple[str, ...]], float]


class JobMetrics(Collector):
    """The metrics of all jobs, registered in `registry`.

    Args:
        per_job: whether there are series of single jobs, which name them. Those over jobs always exist.
    """

    def __init__(self, registry: CollectorRegistry, *, per_job: bool = True) -> None:
        self._per_job = per_job
        self._jobs: dict[Key, _Exported] = {}
        registry.register(self)

    def update(self, key: Key, body: Mapping[str, Any]) -> None:
        """Export the series of a job according to its status."""
        job, before = Job(body), self._jobs.get(key)
        values = {(series, labels): value for series in JOB_SERIES for labels, value in series.values(job).items()}
        if before is not None and before.uid == job.uid:
            for each, value in before.values.items():
                if each[0].counter:  # a status can be older than the last one, or a user has cleared it
                    values[each] = max(value, values.get(each, 0.0))
        self._jobs[key] = _Exported(job.uid, job.phase, values)

    def remove(self, key: Key) -> None:
        """Remove all series of a job that was deleted."""
        self._jobs.pop(key, None)

    def describe(self) -> Iterator[_Family]:
        """Every series, without values."""
        return self._families().__iter__()

    def collect(self) -> Iterator[_Family]:
        """Every series that has a value now."""
        of_job = {series: _job_family(series) for series in JOB_SERIES if series.each_job and self._per_job}
        over_jobs: dict[JobSeries, dict[tuple[str, ...], float]] = {
            series: {} for series in JOB_SERIES if series.over_jobs is not None
        }
        for key, job in self._jobs.items():
            for (series, labels), value in job.values.items():
                if (family := of_job.get(series)) is not None:
                    family.add_metric((*key, *labels), value)
                if series.over_jobs is not None:
                    group, known = (key[0], job.phase, *labels), over_jobs[series]
                    known[group] = series.over_jobs(known[group], value) if group in known else value
        yield from of_job.values()
        for series, groups in over_jobs.items():
            family = _over_jobs(series)
            for group, value in groups.items():
                family.add_metric(group, value)
            yield family

    def _families(self) -> list[_Family]:
        of_job = [_job_family(series) for series in JOB_SERIES if series.each_job and self._per_job]
        return of_job + [_over_jobs(series) for series in JOB_SERIES if series.over_jobs is not None]


def _job_family(series: JobSeries) -> _Family:
    kind = CounterMetricFamily if series.counter else GaugeMetricFamily
    return kind(f"{METRICS_PREFIX}_job_{series.name}", series.help, labels=(*_JOB, *series.labels))


def _over_jobs(series: JobSeries) -> GaugeMetricFamily:
    assert series.over_jobs is not None
    name = f"{METRICS_PREFIX}_jobs_{series.name}".rstrip("_")
    text = f"{_OVER_JOBS[series.over_jobs.__name__]}: {series.help}" if series.name else series.help
    return GaugeMetricFamily(name, text, labels=(*_GROUP, *series.labels))
