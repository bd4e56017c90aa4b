"""The metrics of a job follow its status, and are removed with the job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tensafe_api.reasons import Phase
from tensafe_api.tasks import METRICS
from tensafe_api.timestamps import format_time
from tensafe_operator.job_metrics import JobMetrics
from tensafe_operator.job_series import JOB_SERIES

KEY = ("clinic", "claims")
NOON = 1_790_000_000


def at(seconds: float) -> str:
    """A time in a status, so many seconds after noon."""
    return format_time(NOON + seconds)


def job(
    phase: str, *, stalled: str = "", uid: str = "u-1", status: Mapping[str, Any] | None = None, **privacy: Any
) -> dict[str, Any]:
    conditions = [{"type": "Stalled", "status": "True" if stalled else "False", "reason": stalled}]
    made = {"phase": phase, "conditions": conditions, "privacy": privacy, "ledgerName": "claims-1", **(status or {})}
    return {"metadata": {"uid": uid}, "status": made}


def running(since: float, attempt: Mapping[str, Any], stepped: float | None = None) -> dict[str, Any]:
    """A job whose condition Running is True since a time, with one attempt and the time of the last step."""
    condition = {"type": "Running", "status": "True", "reason": "Training", "lastTransitionTime": at(since)}
    progress = {} if stepped is None else {"step": 3, "lastUpdateTime": at(stepped)}
    more = {"conditions": [condition], "attempts": [{"number": 1, **attempt}], "progress": progress}
    return job("Running", status=more)


def exported(registry: CollectorRegistry, start: str = "tensafe_job_") -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith(start)]


def value(body: Mapping[str, Any], name: str) -> float | None:
    """The value of one series of a job; None if it has none."""
    registry = CollectorRegistry()
    JobMetrics(registry).update(KEY, body)
    return registry.get_sample_value(f"tensafe_job_{name}", dict(zip(("namespace", "job"), KEY)))


def test_series_follow_the_status_and_are_removed_with_the_job() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    figures = {"stepsCharged": 40, "epsilonSpent": "1.5", "targetEpsilon": "8", "unit": "User", "accountant": "RDP"}
    metrics.update(KEY, job("Starting", stalled="Unschedulable", **figures))
    stalled = 'tensafe_job_stalled{job="claims",namespace="clinic",reason="Unschedulable"} 1.0'
    assert stalled in exported(registry)
    metrics.update(KEY, job("Running", **figures))
    labels = 'job="claims",namespace="clinic"'
    info = 'accountant="RDP",job="claims",ledger="claims-1",namespace="clinic",uid="u-1",unit="User"'
    assert exported(registry) == [
        f"tensafe_job_info{{{info}}} 1.0",
        f'tensafe_job_phase{{{labels},phase="Running"}} 1.0',
        f"tensafe_job_steps_charged_total{{{labels}}} 40.0",
        f"tensafe_job_privacy_epsilon{{{labels}}} 1.5",
        f"tensafe_job_privacy_epsilon_limit{{{labels}}} 8.0",
        f"tensafe_job_attempts_total{{{labels}}} 0.0",
        f"tensafe_job_restarts_total{{{labels}}} 0.0",
        f"tensafe_job_queue_seconds_total{{{labels}}} 0.0",
    ]
    metrics.remove(KEY)
    metrics.remove(KEY)
    assert exported(registry, "tensafe_job") == []


def test_progress_evaluation_and_checkpoint_are_those_of_the_status() -> None:
    registry = CollectorRegistry()
    status = {
        "progress": {"step": 41, "lastUpdateTime": at(0)},
        "evaluations": [
            {"step": 20, "loss": "1.5000", "accuracy": "0.5000"},
            {"step": 40, "loss": "0.6200", "accuracy": "0.7500", "f1": "0.2500"},
        ],
        "checkpoints": [
            {"uri": "s3://m/20", "step": 20, "time": at(-60)},
            {"uri": "s3://m/40", "step": 40, "time": at(-5)},
        ],
    }
    JobMetrics(registry).update(KEY, job("Running", status=status, stepsPlanned=100))
    expected = {
        "step": 41,
        "steps_planned": 100,
        "evaluation_loss": 0.62,
        "evaluation_step": 40,
        "checkpoint_step": 40,
        "checkpoint_timestamp_seconds": NOON - 5,
    }
    labels = dict(zip(("namespace", "job"), KEY))
    assert {name: registry.get_sample_value(f"tensafe_job_{name}", labels) for name in expected} == expected
    samples = [each for metric in registry.collect() for each in metric.samples]
    ratios = {each.labels["metric"]: each.value for each in samples if each.name == "tensafe_job_evaluation_ratio"}
    assert ratios == {"accuracy": 0.75, "f1": 0.25}
    assert ratios.keys() <= METRICS.keys()


def test_figure_that_is_not_known_is_absent_and_not_zero() -> None:
    """The budget of a job whose ledger is lost is unknown."""
    lost = job("Failed", stepsPlanned=100, targetEpsilon="8")
    for name in ("privacy_epsilon", "steps_charged_total", "step", "evaluation_loss", "checkpoint_timestamp_seconds"):
        assert value(lost, name) is None
    assert value(lost, "privacy_epsilon_limit") == 8


def test_time_in_the_queue_counts_once_it_has_ended_and_is_a_time_before() -> None:
    waiting = {"number": 2, "startTime": at(0), "queuedSince": at(30), "queuedSeconds": 7}
    attempts = [{"number": 1, "queuedSeconds": 20, "restarts": 2, "endTime": at(0)}, waiting]
    queued = job("Queued", status={"attempts": attempts})
    assert value(queued, "queue_seconds_total") == 27
    assert value(queued, "queued_since_timestamp_seconds") == NOON + 30
    assert (value(queued, "attempts_total"), value(queued, "restarts_total")) == (2, 2)
    ended = job("Starting", status={"attempts": [attempts[0], {"number": 2, "startTime": at(0), "queuedSeconds": 67}]})
    assert value(ended, "queue_seconds_total") == 87
    assert value(ended, "queued_since_timestamp_seconds") is None


def test_time_to_the_first_step_leaves_out_the_queue() -> None:
    name = "time_to_first_step_seconds"
    started = {"startTime": at(0), "queuedSeconds": 30, "restarts": 0}
    assert value(running(100, started), name) == 70
    assert value(running(100, started, stepped=105), name) == 70
    assert value(running(100, started, stepped=-40), name) == 70, "the last step is one of an earlier attempt"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (running(500, {"startTime": at(0), "restarts": 1}, stepped=510), "the workers were started again"),
        (running(500, {"startTime": at(0)}, stepped=300), "a new cluster runs, and its workers have not acquired"),
        (running(500, {"startTime": at(0), "endTime": at(600)}, stepped=510), "the attempt has ended"),
        (running(500, {}), "the attempt has not started"),
        (job("Starting", status={"attempts": [{"number": 1, "startTime": at(0)}]}), "no step is charged"),
    ],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else "",
)
def test_time_to_the_first_step_is_absent_where_the_status_does_not_show_it(body: dict[str, Any], why: str) -> None:
    assert value(body, "time_to_first_step_seconds") is None, why


def test_charged_steps_are_a_counter_that_never_falls() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    for charged in (40, 40, 42, 41, 45):
        metrics.update(KEY, job("Running", stepsCharged=charged))
    text = generate_latest(registry).decode()
    assert "# TYPE tensafe_job_steps_charged_total counter" in text
    assert 'tensafe_job_steps_charged_total{job="claims",namespace="clinic"} 45.0' in text


def test_no_counter_falls_when_an_older_or_a_cleared_status_is_observed() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    attempts = [{"number": 1, "restarts": 3, "queuedSeconds": 9}, {"number": 2}]
    metrics.update(KEY, job("Running", status={"attempts": attempts}, stepsCharged=40))
    before = exported(registry)
    metrics.update(KEY, job("Running"))
    counters = [line for line in before if "_total{" in line]
    assert len(counters) == 4
    assert set(counters) <= set(exported(registry))


def test_later_job_of_the_same_name_starts_from_its_own_figures() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    metrics.update(KEY, job("Running", stepsCharged=40))
    metrics.update(KEY, job("Starting", uid="u-2", stepsCharged=0))
    (line,) = exported(registry, "tensafe_job_steps_charged_total")
    assert line.endswith(" 0.0")
    assert [line for line in exported(registry) if "u-1" in line] == []


def test_restarted_operator_exports_the_same_figures() -> None:
    """All of them are functions of the stored job, so no counter is reset, and no gauge changes."""
    registries = CollectorRegistry(), CollectorRegistry()
    first, second = map(JobMetrics, registries)
    last = running(100, {"startTime": at(0), "queuedSeconds": 30}, stepped=105)
    for body in (job("Queued"), job("Starting"), last):
        first.update(KEY, body)
    second.update(KEY, last)
    assert generate_latest(registries[0]) == generate_latest(registries[1])
    assert exported(registries[0], "tensafe_job_time_to_first_step")


@pytest.mark.slow
def test_without_job_names_a_thousand_jobs_have_a_series_for_each_namespace_and_phase() -> None:
    """The cost of 1,000 jobs: the number of series, and the time of one scrape."""
    registries = CollectorRegistry(), CollectorRegistry()
    named, unnamed = JobMetrics(registries[0]), JobMetrics(registries[1], per_job=False)
    phases = [phase.value for phase in Phase]
    for number in range(1000):
        key = (f"team-{number % 5}", f"secret-name-{number}")
        spent = "9" if number == 0 else "1.5"
        body = job(
            phases[number // 5 % len(phases)],
            stalled="Unschedulable" if number % 2 else "",
            uid=f"u-{number}",
            stepsCharged=number,
            stepsPlanned=1000,
            epsilonSpent=spent,
            targetEpsilon="8",
            status={"checkpoints": [{"step": 1, "time": at(number)}], "attempts": [{"number": 2, "restarts": 1}]},
        )
        for each in (named, unnamed):
            each.update(key, body)
    text = "\n".join(exported(registries[1], "tensafe_job"))
    assert "secret-name" not in text
    assert exported(registries[1]) == []
    lines = exported(registries[1], "tensafe_jobs")
    assert lines == exported(registries[0], "tensafe_jobs"), "the series over jobs are the same in both cases"
    groups = 5 * len(phases)
    assert len(lines) <= groups * (len([each for each in JOB_SERIES if each.over_jobs]) + 1)

    def total(name: str, **labels: str) -> float:
        found = [each for metric in registries[1].collect() for each in metric.samples if each.name == name]
        return sum(each.value for each in found if labels.items() <= each.labels.items())

    assert total("tensafe_jobs") == 1000
    assert total("tensafe_jobs_steps_charged") == sum(range(1000))
    assert total("tensafe_jobs_stalled", reason="Unschedulable") == 500
    assert total("tensafe_jobs_above_epsilon_limit") == 1
    assert total("tensafe_jobs_above_epsilon_limit", namespace="team-0", phase=phases[0]) == 1
    assert (total("tensafe_jobs_attempts"), total("tensafe_jobs_restarts")) == (2000, 1000)
    oldest = {"namespace": "team-0", "phase": phases[0]}
    assert registries[1].get_sample_value("tensafe_jobs_checkpoint_timestamp_seconds", oldest) == NOON

    started = time.process_time()
    generate_latest(registries[0])
    assert time.process_time() - started < 5, "/healthz waits while the metrics are written, and fails after 5 s"
    for number in range(1000):
        unnamed.remove((f"team-{number % 5}", f"secret-name-{number}"))
    assert exported(registries[1], "tensafe_job") == []


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Base units, a time as a timestamp and not as an age, and labels with a bounded number of values."""
    for metric in JobMetrics(CollectorRegistry()).describe():
        words = metric.name.split("_")
        assert not {"minutes", "hours", "milliseconds", "percent", "age", "count", "total"} & set(words), metric.name
        assert words[-1] == "seconds" or not {"timestamp", "since", "time"} & set(words), metric.name
        assert metric.documentation.endswith(".")
        assert set(metric._labelnames) <= {
            *("namespace", "job", "phase", "reason", "metric"),
            *("uid", "ledger", "unit", "accountant"),
        }
