"""Each change of a status becomes one Event: a warning where a user should act."""

from __future__ import annotations

from typing import Any

from tensafe_api.reasons import EventReason, Phase, Reason
from tensafe_api.resources.status import Status
from tensafe_operator.decision.transitions import Transition, transitions_between
from tests.support.fake_cluster import FakeCluster, FakeOperator

DOCUMENTED = {word.value for kind in (EventReason, Phase, Reason) for word in kind}


def status(cluster: FakeCluster) -> Status:
    return Status.model_validate(cluster.status, by_alias=True, by_name=False)


class EventLog:
    """Collects the transitions of a job."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster, self.operator, self.last = cluster, FakeOperator(cluster), Status()

    def settle(self) -> list[Transition]:
        events: list[Transition] = []
        for _ in range(12):
            self.cluster.take_snapshot()
            self.operator.reconcile()
            now = status(self.cluster)
            events += transitions_between(self.last, now)
            assert {each.reason for each in events} <= DOCUMENTED
            self.last = now
        return events


def reasons(events: list[Transition]) -> list[str]:
    return [each.reason for each in events]


def test_successful_job_has_few_events() -> None:
    cluster = FakeCluster.with_job()
    log = EventLog(cluster)
    assert log.settle() == [], "KubeRay has not answered yet"
    cluster.start_pods()
    assert reasons(log.settle()) == ["AttemptStarted"]
    cluster.acquire_ledger()
    cluster.charge(10)
    assert reasons(log.settle()) == ["Running"]
    cluster.charge(5)
    assert log.settle() == [], "progress is in the status"
    cluster.record_outcome("Completed")
    cluster.end_ray_job("SUCCEEDED")
    done = log.settle()
    assert reasons(done) == ["ModelReleased", "Succeeded"]
    assert "s3://m/final" in done[0].message
    assert not any(each.warning for each in done)


def test_failed_attempt_is_a_warning_and_the_next_attempt_an_event() -> None:
    cluster = FakeCluster.with_job()
    log = EventLog(cluster)
    log.settle()
    cluster.start_pods()
    log.settle()
    cluster.end_ray_job("FAILED", "Job failed: driver exited with exit code 69")
    first = log.settle()
    assert reasons(first) == ["ResourcesMissing"]
    assert first[0].warning
    assert first[0].message.startswith("attempt 1: ")
    cluster.remove_terminating_pods()
    cluster.now += 60
    log.settle()
    cluster.start_pods()
    assert "AttemptStarted" in reasons(log.settle())


def test_stalled_job_is_reported_once_for_each_reason() -> None:
    def stalled(reason: str, holds: str = "True") -> Status:
        condition: dict[str, Any] = {"type": "Stalled", "status": holds, "reason": reason, "message": "why"}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        document = {"phase": "Starting", "conditions": [condition]}
        return Status.model_validate(document, by_alias=True, by_name=False)

    assert reasons(list(transitions_between(stalled("Starting", "False"), stalled("Unschedulable")))) == [
        "Unschedulable"
    ]
    assert transitions_between(stalled("Unschedulable"), stalled("Unschedulable")) == ()
    assert reasons(list(transitions_between(stalled("Unschedulable"), stalled("SecretMissing")))) == ["SecretMissing"]
    assert transitions_between(stalled("SecretMissing"), stalled("Starting", "False")) == ()
