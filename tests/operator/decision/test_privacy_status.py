"""Privacy figures of a job, from the charges of its ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensafe_api.timestamps import format_time
from tests.support.fake_cluster import FakeCluster, running_job


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


@pytest.mark.parametrize(
    ("time", "shown"), [("9999-12-31T23:59:59-23:59", None), ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z")]
)
def test_charges_count_whatever_the_time_of_the_last_step_is(time: str, shown: str | None) -> None:
    cluster, operator = running_job()
    assert cluster.ledger is not None
    cluster.charge(5)
    publish_checkpoint(cluster)
    cluster.ledger["status"]["progress"]["lastUpdateTime"] = time
    operator.settle()
    assert cluster.status["privacy"]["stepsCharged"] == 10
    assert checkpoint_times(cluster) == [shown]


def publish_checkpoint(cluster: FakeCluster) -> None:
    """Record a checkpoint of the last step, as rank 0 does."""
    assert cluster.ledger is not None
    status = cluster.ledger["status"]
    step, charged = status["progress"]["step"], sum(charge["steps"] for charge in status["charges"])
    made = {"uri": f"s3://m/{charged}", "step": step, "attempt": status["attempt"], "digest": "d", "final": False}
    status.setdefault("releases", []).append({**made, "statementDigest": "s", "stepsCharged": charged})


def test_status_says_which_checkpoints_are_signed() -> None:
    cluster, operator = running_job()
    publish_checkpoint(cluster)
    cluster.charge(5)
    publish_checkpoint(cluster)
    assert cluster.ledger is not None
    cluster.ledger["status"]["releases"][-1]["signer"] = f"sha256:{'a' * 64}"
    operator.settle()
    assert [each["signed"] for each in cluster.status["checkpoints"]] == [False, True]


def checkpoint_times(cluster: FakeCluster) -> list[str | None]:
    return [each.get("time") for each in cluster.status["checkpoints"]]


def test_checkpoint_has_the_time_of_the_step_that_it_was_written_after() -> None:
    """The ledger has no time of a checkpoint, so the status keeps it when other steps follow."""
    cluster, operator = running_job()
    publish_checkpoint(cluster)
    written = format_time(cluster.now)
    cluster.now += 60
    operator.settle()
    assert checkpoint_times(cluster) == [written]
    cluster.charge(5)
    operator.settle()
    assert checkpoint_times(cluster) == [written]
    publish_checkpoint(cluster)
    cluster.now += 60
    operator.settle()
    assert checkpoint_times(cluster) == [written, format_time(cluster.now - 60)]


def test_checkpoint_that_the_operator_sees_after_later_steps_has_no_time() -> None:
    cluster, operator = running_job()
    publish_checkpoint(cluster)
    cluster.charge(5)
    operator.settle()
    assert checkpoint_times(cluster) == [None]


def test_step_that_is_done_again_is_not_the_time_of_an_older_checkpoint() -> None:
    """After a crash, a step with the checkpoint's number can be the last one. It was charged after the checkpoint."""
    cluster, operator = running_job()
    publish_checkpoint(cluster)
    assert cluster.ledger is not None
    status = cluster.ledger["status"]
    status["charges"][0]["steps"] += 5
    status |= {"length": status["length"] + 1, "stepsRecharged": 5}
    operator.settle()
    assert status["progress"]["step"] == status["releases"][-1]["step"]
    assert checkpoint_times(cluster) == [None]
