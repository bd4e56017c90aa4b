"""A reconcile that fails on a real API server: its job says so, and its charges still count."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest

from e2e.platform.fixtures.job_harness import JobHarness
from tensafe_operator import reconcile
from tensafe_operator.plan.observed import Decision, Observed

pytestmark = pytest.mark.cluster


def test_failed_reconcile_is_reported_once_and_the_next_successful_one_removes_the_report(
    cluster: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("a diagnosis")

    cluster.apply()
    cluster.reconcile()
    before = cluster.status()
    with monkeypatch.context() as broken:
        broken.setattr("tensafe_operator.reconcile.decide", fail)
        with pytest.raises(KeyError):
            cluster.reconcile(passes=1)
        reported = cluster.get("tsj", "claims-triage") or {}
        stalled = cluster.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "InternalError")
        assert "KeyError" in stalled["message"] and "diagnosis" not in json.dumps(reported)
        assert without_stalled(reported["status"]) == without_stalled(before)
        cluster.now += 60
        with pytest.raises(KeyError):
            cluster.reconcile(passes=1)
        assert cluster.get("tsj", "claims-triage") == reported, "the same failure is not written again"
    cluster.reconcile(passes=1)
    assert cluster.condition("Stalled")["status"] == "False"
    assert without_stalled(cluster.status()) == without_stalled(before)


def test_failed_reconcile_counts_what_the_ledger_was_charged(
    cluster: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other part of a ledger keeps its charges out of the status."""

    def fail(*_: object) -> NoReturn:
        raise ValueError("a time that cannot be shown")

    cluster.apply()
    cluster.reconcile()
    cluster.charge(cluster.create_worker_pod(), 5)
    monkeypatch.setattr("tensafe_operator.reconcile.decide", fail)
    with pytest.raises(ValueError):
        cluster.reconcile(passes=1)
    assert cluster.condition("Stalled")["reason"] == "InternalError"
    assert cluster.status()["privacy"]["stepsCharged"] == 5
    assert float(cluster.status()["privacy"]["epsilonSpent"]) > 0


def test_failure_that_cannot_be_reported_is_raised(
    cluster: JobHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first reconcile writes a status before it fails, so the version that it started with is outdated."""
    decide = reconcile.decide

    def fail_after_the_first_status(observed: Observed, *rest: Any) -> Decision:
        if observed.job["status"].get("phase"):
            raise KeyError("a diagnosis")
        return decide(observed, *rest)

    cluster.apply()
    monkeypatch.setattr(reconcile, "decide", fail_after_the_first_status)
    with pytest.raises(KeyError):
        cluster.reconcile(passes=1)
    assert cluster.condition("Stalled")["status"] == "False"
    assert "the status cannot report this failure: RetryLater" in caplog.messages
    with pytest.raises(KeyError):
        cluster.reconcile(passes=1)
    assert cluster.condition("Stalled")["reason"] == "InternalError"


def without_stalled(status: dict[str, Any]) -> dict[str, Any]:
    others = [each for each in status["conditions"] if each["type"] != "Stalled"]
    return {name: each for name, each in status.items() if name != "blocker"} | {"conditions": others}
