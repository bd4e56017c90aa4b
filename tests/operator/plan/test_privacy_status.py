"""Privacy figures of a job, from the charges of its ledger."""

from __future__ import annotations

from dataclasses import replace

from e2e.platform.fixtures.fake_cluster import running_job


def test_running_job_shows_the_spent_epsilon() -> None:
    cluster, _ = running_job()
    assert cluster.status["phase"] == "Running"
    assert cluster.status["privacy"]["stepsCharged"] == 5
    assert (
        0 < float(cluster.status["privacy"]["epsilonSpent"]) < float(cluster.status["privacy"]["epsilonClaimed"]) <= 8
    )
    assert cluster.status["progress"]["step"] == 5


def test_epsilon_does_not_fall_when_an_older_ledger_is_observed() -> None:
    cluster, operator = running_job()
    cluster.take_snapshot()
    older = cluster.observe()
    cluster.charge(5)
    operator.settle()
    before = cluster.status
    operator.reconcile(replace(cluster.observe(), ledger=older.ledger))
    assert cluster.status["privacy"] == before["privacy"]
    assert cluster.status["progress"] == before["progress"]
