"""What is written of a status for which the job has no room."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.platform.fixtures.fake_cluster import FakeCluster, running_job, start_next_attempt, started_job
from tensafe_api.resources.ledger import MAX_CHARGED_STEPS
from tensafe_api.resources.status import Status
from tensafe_operator.apply import write_status
from tensafe_operator.plan.short_status import short_status
from tensafe_operator.runtime.api_errors import ApiError, ObjectTooLarge


def size(status: dict[str, Any]) -> int:
    return len(json.dumps(status, separators=(",", ":")))


class FullApi:
    """Stores statuses of at most `room` characters, and Events."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.events: list[dict[str, Any]] = []

    async def replace_status(
        self, job: dict[str, Any], status: dict[str, Any], *, without_managers: bool
    ) -> dict[str, Any]:
        if size(status) > self.room:
            raise ObjectTooLarge(500, "etcdserver: request is too large")
        return {**job, "status": status}

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.events.append(manifest)
        return manifest


def charged_job() -> tuple[FakeCluster, Status]:
    """A job with a stored status of 5 charged steps, and its status after 10."""
    cluster, operator = running_job()
    cluster.job["metadata"]["resourceVersion"] = "1"
    stored = cluster.status
    cluster.charge(5)
    operator.settle()
    after = Status.model_validate(cluster.status, by_alias=True, by_name=False)
    cluster.job["status"] = stored
    return cluster, after


def write(api: FullApi, cluster: FakeCluster, status: Status) -> dict[str, Any] | None:
    return asyncio.run(write_status(api, cluster.job, status, cluster.now))  # type: ignore[arg-type]


def test_every_privacy_figure_is_stored_although_there_is_no_room_for_more() -> None:
    cluster, after = charged_job()
    api = FullApi(size(cluster.job["status"]))
    conditions = tuple(each.model_copy(update={"message": "x" * 100}) for each in after.conditions)
    longer = after.model_copy(update={"conditions": conditions})
    stored = write(api, cluster, longer)
    assert stored is not None
    expected = after.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert stored["status"]["privacy"] == expected["privacy"] and expected["privacy"]["stepsCharged"] == 10
    assert stored["status"]["attempts"] == expected["attempts"]
    stalled = next(each for each in stored["status"]["conditions"] if each["type"] == "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "Forbidden")
    assert "remove labels" in stalled["message"]
    assert [each["reason"] for each in api.events] == ["Forbidden"]
    assert write(api, FakeCluster(stored), longer) is None, "it is not written again"


def test_event_reports_a_job_without_room_for_a_short_status() -> None:
    cluster, after = charged_job()
    api = FullApi(0)
    with pytest.raises(ObjectTooLarge):
        write(api, cluster, after)
    assert [(each["type"], each["reason"]) for each in api.events] == [("Warning", "Forbidden")]


class RefusingApi(FullApi):
    """Refuses each status with another text, as a webhook whose message has the number of a connection."""

    async def replace_status(self, job: Any, status: Any, *, without_managers: bool) -> dict[str, Any]:
        raise ApiError(403, f"denied: request {len(self.events)}")


def test_refusal_whose_text_varies_is_one_event() -> None:
    cluster, after = charged_job()
    api = RefusingApi(0)
    for _ in range(3):
        with pytest.raises(ApiError):
            write(api, cluster, after)
    assert len({each["message"] for each in api.events}) == 3
    assert len({each["metadata"]["name"] for each in api.events}) == 1, "the API server keeps the first"


@given(charges=st.lists(st.integers(1, MAX_CHARGED_STEPS // 5), min_size=2, max_size=4), ends=st.booleans())
def test_figures_are_stored_although_a_user_takes_all_room_that_is_left(charges: list[int], ends: bool) -> None:
    """Also where an attempt ends meanwhile, which makes the status longer."""
    cluster, after = charged_job()
    total = 10
    for number, steps in enumerate(charges):
        total += steps
        api = FullApi(size(cluster.job["status"]))
        privacy = after.privacy.model_copy(update={"steps_charged": total, "epsilon_spent": str(total * 1.001)})
        attempts = after.attempts
        if ends and number:
            attempts = (attempts[0].model_copy(update={"reason": "WorkerLost", "message": "a reason " * 20}),)
        stored = write(api, cluster, after.model_copy(update={"privacy": privacy, "attempts": attempts}))
        assert stored is not None
        shown = stored["status"]["privacy"]
        assert (shown["stepsCharged"], shown["epsilonSpent"]) == (total, str(total * 1.001))
        cluster.job = stored


def test_short_status_is_not_longer_than_the_full_one() -> None:
    """So it can be stored wherever the full one is, with the room for the figures that follow."""
    cluster, operator = started_job()
    phases = set()

    def check() -> None:
        operator.settle()
        status = Status.model_validate(cluster.status, by_alias=True, by_name=False)
        short = short_status(cluster.status, status, cluster.now)
        document = short.model_dump(by_alias=True, mode="json", exclude_none=True)
        assert size(document) <= size(cluster.status)
        phases.add(cluster.status["phase"])

    check()
    cluster.start_pods()
    cluster.acquire_ledger()
    cluster.charge(5)
    check()
    cluster.end_ray_job("FAILED", "exit code 10")
    check()
    start_next_attempt(cluster, operator)
    check()
    cluster.suspend(True)
    check()
    assert len(phases) > 2
