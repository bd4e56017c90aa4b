"""A reconcile that fails on a real API server: its job says so."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest

from tests.support.job_harness import JobHarness

pytestmark = pytest.mark.cluster


def test_failed_reconcile_is_reported_once_and_the_next_successful_one_removes_the_report(
    cluster: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("a diagnosis")

    cluster.apply(spec__suspend=True)
    cluster.reconcile()
    before = cluster.status()
    with monkeypatch.context() as broken:
        broken.setattr("tensafe_operator.reconcile.decide", fail)
        with pytest.raises(KeyError):
            cluster.reconcile(passes=1)
        reported = cluster.get("TenSafeTrainingJob", "claims-triage") or {}
        stalled = cluster.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "InternalError")
        assert "KeyError" in stalled["message"] and "diagnosis" not in json.dumps(reported)
        assert without_stalled(reported["status"]) == without_stalled(before)
        cluster.now += 60
        with pytest.raises(KeyError):
            cluster.reconcile(passes=1)
        assert cluster.get("TenSafeTrainingJob", "claims-triage") == reported, "the same failure is not written again"
    cluster.reconcile(passes=1)
    assert cluster.condition("Stalled")["status"] == "False"
    assert without_stalled(cluster.status()) == without_stalled(before)


def without_stalled(status: dict[str, Any]) -> dict[str, Any]:
    others = [each for each in status["conditions"] if each["type"] != "Stalled"]
    return {name: each for name, each in status.items() if name != "blocker"} | {"conditions": others}
