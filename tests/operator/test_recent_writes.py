"""Objects that jobs share, or that another client changes each time, are written once a minute at most."""

from __future__ import annotations

import pytest

from tensafe_operator.decision.observation import Action, Create, Delete
from tensafe_operator.recent_writes import PAUSE_SECONDS, RecentWrites


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def create(kind: str, name: str = "triage", namespace: str = "clinic") -> Create:
    return Create({"kind": kind, "metadata": {"name": name, "namespace": namespace}})


POLICY, ACCOUNT = create("NetworkPolicy"), create("ServiceAccount")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recent(clock: Clock) -> RecentWrites:
    return RecentWrites(clock)


@pytest.mark.parametrize("action", [POLICY, ACCOUNT])
def test_written_object_is_left_out_for_a_minute(recent: RecentWrites, clock: Clock, action: Action) -> None:
    recent.note([action])
    clock.now += PAUSE_SECONDS - 1
    assert recent.without_recent([action]) == ()
    clock.now += 1
    assert recent.without_recent([action]) == (action,)


def test_object_that_could_not_be_written_is_tried_again(recent: RecentWrites) -> None:
    assert recent.without_recent([ACCOUNT]) == recent.without_recent([ACCOUNT]) == (ACCOUNT,)


def test_other_objects_are_not_left_out(recent: RecentWrites) -> None:
    recent.note([POLICY, ACCOUNT])
    others: tuple[Action, ...] = (
        create("NetworkPolicy", "other"),
        create("ServiceAccount", namespace="lab"),
        create("ConfigMap"),
        Delete("RayJob", "triage-a1"),
    )
    recent.note(others)
    assert recent.without_recent((POLICY, ACCOUNT, *others[2:])) == others[2:]


def test_what_was_written_in_a_namespace_may_be_gone_with_a_job(recent: RecentWrites) -> None:
    """A namespace that is deleted and created again has no account."""
    other = create("ServiceAccount", namespace="lab")
    recent.note([ACCOUNT])
    recent.note([other])
    recent.forget("clinic")
    assert recent.without_recent([ACCOUNT, other]) == (ACCOUNT,)


def test_attempt_never_starts_without_its_network_policy(recent: RecentWrites) -> None:
    ray_job = create("RayJob")
    recent.note([POLICY, ACCOUNT])
    assert recent.without_recent([POLICY, ACCOUNT, ray_job]) == (POLICY, ray_job)


def test_network_policy_is_brought_back_at_once_after_the_start(recent: RecentWrites) -> None:
    recent.note([POLICY, create("RayJob")])
    assert recent.without_recent([POLICY]) == (POLICY,)
