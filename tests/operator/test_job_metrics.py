"""The metrics of a job follow its status, and are removed with the job."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from tensafe_operator.job_metrics import JobMetrics

KEY = ("clinic", "claims")


def job(phase: str, *, stalled: str = "", **privacy: Any) -> dict[str, Any]:
    conditions = [{"type": "Stalled", "status": "True" if stalled else "False", "reason": stalled}]
    status = {"phase": phase, "conditions": conditions, "privacy": privacy, "ledgerName": "claims-1"}
    return {"metadata": {"uid": "u-1"}, "status": status}


def exported(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith("tensafe_job")]


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
    ]
    metrics.remove(KEY)
    metrics.remove(KEY)
    assert exported(registry) == []


def test_charged_steps_are_a_counter_that_never_falls() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    for charged in (40, 40, 42, 41, 45):
        metrics.update(KEY, job("Running", stepsCharged=charged))
    text = generate_latest(registry).decode()
    assert "# TYPE tensafe_job_steps_charged_total counter" in text
    assert 'tensafe_job_steps_charged_total{job="claims",namespace="clinic"} 45.0' in text
