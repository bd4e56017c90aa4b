"""An object that another client changes again and again is brought back with pauses."""

from __future__ import annotations

import logging

import pytest

from tensafe_operator import names
from tensafe_operator.corrections import BURST, PAUSE_SECONDS, WINDOW_SECONDS, Corrections
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


def test_fight_about_an_object_pauses_and_is_logged_once(
    corrections: Corrections, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(BURST):
        assert corrections.allowed([POLICY]) == ((POLICY,), None)
        clock.now += 0.01
    end = clock.now + PAUSE_SECONDS
    for _ in range(3):
        assert corrections.allowed([POLICY]) == ((), end)
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    assert "NetworkPolicy triage was brought back" in caplog.text and "a second operator" in caplog.text
    clock.now = end
    assert corrections.allowed([POLICY]) == ((POLICY,), None), "it is brought back again after the pause"


def test_rare_changes_are_always_brought_back(corrections: Corrections, clock: Clock) -> None:
    for _ in range(5 * BURST):
        assert corrections.allowed([POLICY]) == ((POLICY,), None)
        clock.now += WINDOW_SECONDS / BURST


def test_pause_is_of_one_object_alone(corrections: Corrections) -> None:
    for _ in range(BURST + 1):
        corrections.allowed([POLICY])
    others: tuple[Action, ...] = (
        create("RoleBinding"),
        create("NetworkPolicy", "other"),
        Delete("RayJob", "triage-a1"),
    )
    kept, end = corrections.allowed((POLICY, *others))
    assert kept == others and end is not None


def test_attempt_never_starts_without_its_network_policy(corrections: Corrections) -> None:
    for _ in range(BURST + 1):
        corrections.allowed([POLICY])
    start = (POLICY, create("RayJob"))
    assert corrections.allowed(start) == (start, None)
