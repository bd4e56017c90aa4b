"""A job's series say what its status says, and nothing of what has passed."""

from __future__ import annotations

from typing import Any

from prometheus_client import generate_latest

from tensafe_operator.runtime.metrics import Metrics

KEY = ("clinic", "claims")


def job(phase: str, *, stalled: str = "", **privacy: Any) -> dict[str, Any]:
    conditions = [{"type": "Stalled", "status": "True" if stalled else "False", "reason": stalled}]
    status = {"phase": phase, "conditions": conditions, "privacy": privacy, "ledgerName": "claims-1"}
    return {"metadata": {"uid": "u-1"}, "status": status}


def shown(metrics: Metrics) -> list[str]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return [line for line in lines if line.startswith("tensafe_job")]


def test_series_follow_the_status_and_go_with_the_job() -> None:
    metrics = Metrics()
    figures = {"stepsCharged": 40, "epsilonSpent": "1.5", "targetEpsilon": "8", "unit": "User", "accountant": "RDP"}
    metrics.show(KEY, job("Starting", stalled="Unschedulable", **figures))
    assert 'tensafe_job_stalled{job="claims",namespace="clinic",reason="Unschedulable"} 1.0' in shown(metrics)
    metrics.show(KEY, job("Running", **figures))
    place = 'job="claims",namespace="clinic"'
    whose = 'accountant="RDP",job="claims",ledger="claims-1",namespace="clinic",uid="u-1",unit="User"'
    assert shown(metrics) == [
        f"tensafe_job_info{{{whose}}} 1.0",
        f'tensafe_job_phase{{{place},phase="Running"}} 1.0',
        f"tensafe_job_steps_charged_total{{{place}}} 40.0",
        f"tensafe_job_privacy_epsilon{{{place}}} 1.5",
        f"tensafe_job_privacy_epsilon_limit{{{place}}} 8.0",
    ]
    metrics.forget(KEY)
    metrics.forget(KEY)
    assert shown(metrics) == []


def test_requests_are_counted_by_method_and_answer() -> None:
    metrics = Metrics()
    metrics.answered("POST", 409)
    metrics.answered("GET", 0)
    text = generate_latest(metrics.registry).decode()
    assert 'tensafe_api_requests_total{code="409",method="POST"} 1.0' in text
    assert 'tensafe_api_requests_total{code="0",method="GET"} 1.0' in text
