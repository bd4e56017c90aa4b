"""What is exported of each job: one row of `JOB_SERIES` for each series. All of these figures are public.

A row has the name, the type, the labels and the help text of a series, and a function that reads the value from the
job. To add a series, add a row; `make docs` adds it to the reference page. Every value is a function of the job alone,
mostly of its status, so a restart of the operator changes none.

Each row gives the series `tensafe_job_NAME` with the labels `namespace` and `job`, and, if it has `over_jobs`, the
series `tensafe_jobs_NAME` over all jobs of a namespace and phase, which names no job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import Any

from pydantic.alias_generators import to_camel

from tensafe_api.reasons import ConditionType, Phase
from tensafe_api.tasks import METRICS
from tensafe_api.timestamps import parse_time

Labelled = Mapping[tuple[str, ...], float]
"""Values by the values of a series' own labels."""


class Job:
    """A job as the API server has it, with the parts of its status that are exported."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.uid = str(body["metadata"]["uid"])
        self._status: Mapping[str, Any] = body.get("status") or {}
        self.phase = str(self._status.get("phase") or Phase.PENDING.value)
        self.ledger = str(self._status.get("ledgerName") or "")
        self.privacy: Mapping[str, Any] = self._status.get("privacy") or {}
        self.progress: Mapping[str, Any] = self._status.get("progress") or {}
        self.attempts: list[Mapping[str, Any]] = list(self._status.get("attempts") or ())

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """The newest evaluation; empty if there is none. A status has public evaluations only."""
        return (self._status.get("evaluations") or ({},))[-1]

    @property
    def checkpoint(self) -> Mapping[str, Any]:
        """The newest checkpoint; empty if there is none."""
        return (self._status.get("checkpoints") or ({},))[-1]

    @cached_property
    def conditions(self) -> Mapping[str, Mapping[str, Any]]:
        """The conditions by type."""
        return {each["type"]: each for each in self._status.get("conditions") or ()}

    def since(self, kind: ConditionType) -> float | None:
        """Since when a condition is True, in seconds since the epoch; None if it is not."""
        condition = self.conditions.get(kind.value, {})
        return parse_time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


@dataclass(frozen=True, eq=False)
class JobSeries:
    """One series of each job.

    Attributes:
        name: the series is `tensafe_job_NAME`, a counter's `tensafe_job_NAME_total`. Empty: `tensafe_jobs` alone.
        help: one sentence. It names the unit where the name does not.
        read: returns the value; None if the job has none. With `labels`, it returns a value for each set of them.
        counter: whether the value never falls. A status that is older than the last one lowers no counter.
        labels: labels beside `namespace` and `job`, each with a bounded number of values.
        over_jobs: combines the values of two jobs to that of both; None: the series exists for single jobs alone.
            The result is a gauge also for a counter, because jobs leave a phase, and are deleted.
        each_job: whether the series exists for single jobs.
    """

    name: str
    help: str
    read: Callable[[Job], float | Labelled | None]
    counter: bool = False
    labels: tuple[str, ...] = ()
    over_jobs: Callable[[float, float], float] | None = None
    each_job: bool = True

    def values(self, job: Job) -> Labelled:
        """The values of a job, by the values of `labels`."""
        found = self.read(job)
        if isinstance(found, Mapping):
            return found
        return {} if found is None else {(): float(found)}


def _number(block: Mapping[str, Any], field: str) -> float | None:
    """A number of the status, which has those with a privacy meaning as strings."""
    value = block.get(field)
    return None if value is None else float(value)


def _info(job: Job) -> Labelled:
    return {(job.uid, job.ledger, str(job.privacy.get("unit") or ""), str(job.privacy.get("accountant") or "")): 1}


def _stalled(job: Job) -> Labelled:
    condition = job.conditions.get(ConditionType.STALLED.value, {})
    return {(str(condition["reason"]),): 1} if condition.get("status") == "True" else {}


def _evaluation_ratios(job: Job) -> Labelled:
    found = {name: _number(job.evaluation, to_camel(name)) for name in METRICS}
    return {(name,): value for name, value in found.items() if value is not None}


def _is_above_limit(job: Job) -> float | None:
    spent, limit = _number(job.privacy, "epsilonSpent"), _number(job.privacy, "targetEpsilon")
    return None if spent is None or limit is None else float(spent > limit)


def _queue_seconds(job: Job) -> float:
    return float(sum(each.get("queuedSeconds") or 0 for each in job.attempts))


def _queued_since(job: Job) -> float | None:
    return parse_time(job.attempts[-1].get("queuedSince")) if job.attempts else None


def _time_to_first_step(job: Job) -> float | None:
    """From the condition Running, if it became True because this attempt charged its first steps.

    It also becomes True when KubeRay has created a cluster again. Until the new workers have acquired the ledger, which
    counts a restart, the last step is then one of this attempt, and older than the condition.
    """
    running = job.since(ConditionType.RUNNING)
    attempt = job.attempts[-1] if job.attempts else {}
    started, stepped = parse_time(attempt.get("startTime")), parse_time(job.progress.get("lastUpdateTime"))
    if running is None or started is None or attempt.get("endTime") or attempt.get("restarts"):
        return None
    if stepped is not None and started < stepped < running:
        return None
    return max(0.0, running - started - (attempt.get("queuedSeconds") or 0))


JOB_SERIES: tuple[JobSeries, ...] = (
    JobSeries("", "Number of jobs.", lambda job: 1, over_jobs=add, each_job=False),
    JobSeries("info", "1; the labels identify the job.", _info, labels=("uid", "ledger", "unit", "accountant")),
    JobSeries("phase", "1 for the current phase of the job.", lambda job: {(job.phase,): 1}, labels=("phase",)),
    JobSeries("stalled", "1 while the job is stalled until a user acts.", _stalled, labels=("reason",), over_jobs=add),
    JobSeries(
        "steps_charged",
        "Steps charged over all attempts.",
        lambda job: _number(job.privacy, "stepsCharged"),
        counter=True,
        over_jobs=add,
    ),
    JobSeries(
        "privacy_epsilon",
        "Epsilon of the charged steps, or of somewhat more while the job trains.",
        lambda job: _number(job.privacy, "epsilonSpent"),
    ),
    JobSeries(
        "privacy_epsilon_limit",
        "Epsilon that must not be exceeded.",
        lambda job: _number(job.privacy, "targetEpsilon"),
    ),
    JobSeries(
        "above_epsilon_limit",
        "1 if more epsilon was spent than the limit allows.",
        _is_above_limit,
        over_jobs=add,
        each_job=False,
    ),
    JobSeries(
        "step",
        "Steps done. It falls when a restart continues from an earlier checkpoint.",
        lambda job: _number(job.progress, "step"),
        over_jobs=add,
    ),
    JobSeries(
        "steps_planned", "Steps in the training plan.", lambda job: _number(job.privacy, "stepsPlanned"), over_jobs=add
    ),
    JobSeries(
        "evaluation_loss",
        "Mean loss of the newest evaluation on a public data set.",
        lambda job: _number(job.evaluation, "loss"),
    ),
    JobSeries(
        "evaluation_ratio",
        "A metric of the newest evaluation on a public data set, from 0 to 1.",
        _evaluation_ratios,
        labels=("metric",),
    ),
    JobSeries("evaluation_step", "Steps done at the newest evaluation.", lambda job: _number(job.evaluation, "step")),
    JobSeries(
        "attempts",
        "Attempts, with the present one.",
        lambda job: max((int(each["number"]) for each in job.attempts), default=0),
        counter=True,
        over_jobs=add,
    ),
    JobSeries(
        "restarts",
        "Restarts of the workers within attempts.",
        lambda job: sum(each.get("restarts") or 0 for each in job.attempts),
        counter=True,
        over_jobs=add,
    ),
    JobSeries(
        "queue_seconds",
        "Time that attempts waited in their queue, without a wait that has not ended.",
        _queue_seconds,
        counter=True,
        over_jobs=add,
    ),
    JobSeries(
        "queued_since_timestamp_seconds",
        "Since when the job waits in its queue; absent if it does not.",
        _queued_since,
        over_jobs=min,
    ),
    JobSeries(
        "time_to_first_step_seconds",
        "Time from the start of the running attempt to its first charge, without its time in the queue. Absent after "
        "a restart of its workers.",
        _time_to_first_step,
        over_jobs=max,
    ),
    JobSeries("checkpoint_step", "Steps done at the newest checkpoint.", lambda job: _number(job.checkpoint, "step")),
    JobSeries(
        "checkpoint_timestamp_seconds",
        "When the last step before the newest checkpoint ended. Absent if the operator did not run then.",
        lambda job: parse_time(job.checkpoint.get("time")),
        over_jobs=min,
    ),
)
"""In the order in which they are exported."""
