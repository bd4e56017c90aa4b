"""Requests are counted, and all names carry the prefix."""

from __future__ import annotations

from prometheus_client import generate_latest

from tensafe_operator.runtime.metrics import OperatorMetrics


def test_requests_are_counted_by_method_and_status() -> None:
    metrics = OperatorMetrics("tensafe")
    metrics.count_request("POST", 409)
    metrics.count_request("GET", 0)
    text = generate_latest(metrics.registry).decode()
    assert 'tensafe_api_requests_total{code="409",method="POST"} 1.0' in text
    assert 'tensafe_api_requests_total{code="0",method="GET"} 1.0' in text


def test_names_start_with_the_given_prefix() -> None:
    families = {family.name for family in OperatorMetrics("other").registry.collect()}
    assert families == {
        "other_reconcile_duration_seconds",
        "other_reconcile_errors",
        "other_work_queue_depth",
        "other_leading",
        "other_event_loop_lag_seconds",
        "other_api_last_heard_timestamp_seconds",
        "other_api_requests",
        "other_namespace_served",
    }
