"""An object that another client changes again and again is brought back with pauses."""

from __future__ import annotations

import logging

import pytest

from tensafe_operator import names
from tensafe_operator.corrections import BURST, PAUSE_SECONDS, WINDOW_SECONDS, Allowed, Corrections
from tensafe_operator.plan.observed import Action, Create, Delete


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def create(kind: str, job: str = "triage") -> Create:
    metadata = {"name": job, "namespace": "clinic", "labels": {names.JOB: job}}
    return Create({"kind": kind, "metadata": metadata})


POLICY = create("NetworkPolicy")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def corrections(clock: Clock) -> Corrections:
    return Corrections(clock)


def bring_back(corrections: Corrections, *actions: Action) -> Allowed:
    """Take the actions that are allowed, all with success."""
    allowed = corrections.allowed(actions)
    for action in allowed.actions:
        if isinstance(action, Create):
            corrections.count(action)
    return allowed


def test_fight_about_an_object_pauses_is_shown_and_logged_once(
    corrections: Corrections, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(BURST):
        assert bring_back(corrections, POLICY) == Allowed((POLICY,), corrects=True)
        clock.now += 0.01
    end = clock.now + PAUSE_SECONDS
    for _ in range(3):
        paused = bring_back(corrections, POLICY)
        assert (paused.actions, paused.until) == ((), end)
        (left,) = paused.left
        assert (left.kind, left.name) == ("NetworkPolicy", "triage")
        assert "another client changes it each time" in left.message
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    assert "NetworkPolicy triage: it was brought back" in caplog.text and "a second operator" in caplog.text


def test_after_a_pause_one_more_change_starts_the_next_pause(corrections: Corrections, clock: Clock) -> None:
    for _ in range(BURST + 1):
        bring_back(corrections, POLICY)
    clock.now += PAUSE_SECONDS
    assert bring_back(corrections, POLICY).actions == (POLICY,), "it is brought back again after the pause"
    assert bring_back(corrections, POLICY).actions == ()
    clock.now += PAUSE_SECONDS + WINDOW_SECONDS
    for _ in range(BURST):
        assert bring_back(corrections, POLICY).actions == (POLICY,), "the client was away for a while"


def test_pause_is_shown_once_where_another_operator_removes_it_from_the_status(
    corrections: Corrections, clock: Clock
) -> None:
    """Two operators of one namespace, which wake each other, replaced each other's status 26 times in a second."""
    for _ in range(2):
        while not (left := bring_back(corrections, POLICY).left):
            pass
        assert bring_back(corrections, POLICY).left == left, "its write was refused, so the status does not show it yet"
        corrections.show("clinic", left)
        assert corrections.allowed([POLICY], stalled=f"NetworkPolicy triage: {left[0].message}: Find it.").left == left
        assert corrections.allowed([POLICY], stalled="").left == ()
        clock.now += PAUSE_SECONDS


def test_refused_correction_is_tried_again_without_a_pause(corrections: Corrections) -> None:
    for _ in range(5 * BURST):
        assert corrections.allowed([POLICY]) == Allowed((POLICY,), corrects=True)


def test_rare_changes_are_always_brought_back(corrections: Corrections, clock: Clock) -> None:
    for _ in range(5 * BURST):
        assert bring_back(corrections, POLICY) == Allowed((POLICY,), corrects=True)
        clock.now += WINDOW_SECONDS / BURST


def test_pause_is_of_one_object_alone(corrections: Corrections) -> None:
    for _ in range(BURST + 1):
        bring_back(corrections, POLICY)
    others: tuple[Action, ...] = (
        create("RoleBinding"),
        create("NetworkPolicy", "other"),
        Delete("RayJob", "triage-a1"),
    )
    allowed = corrections.allowed((POLICY, *others))
    assert allowed.actions == others and allowed.until is not None


def test_attempt_never_starts_without_its_network_policy(corrections: Corrections) -> None:
    for _ in range(BURST + 1):
        bring_back(corrections, POLICY)
    start = (POLICY, create("RayJob"))
    assert corrections.allowed(start) == Allowed(start)


def test_objects_with_which_an_attempt_starts_are_no_corrections(corrections: Corrections) -> None:
    """Nothing is kept of them: the operator starts thousands of jobs."""
    assert not corrections.allowed((POLICY, create("RayJob"))).corrects
    assert corrections.allowed([POLICY]).corrects
