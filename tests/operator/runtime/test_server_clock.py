"""The clock of the API server replaces the own one where both differ much."""

from __future__ import annotations

import logging
from email.utils import formatdate

import pytest

from tensafe_operator.runtime.server_clock import LONGEST_ANSWER_SECONDS, TOLERANCE_SECONDS, ServerClock

SERVER = 1_800_000_000.0
DAY = 86400.0


class Own:
    """A machine's clock that is ahead of that of the API server."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def __call__(self) -> float:
        return SERVER + self.ahead


def heard(clock: ServerClock, seconds: float = 0.1) -> None:
    clock.heard(formatdate(SERVER, usegmt=True), seconds)


@pytest.mark.parametrize("ahead", [600.0, -600.0, DAY, -DAY])
def test_time_of_the_server_is_used(ahead: float, caplog: pytest.LogCaptureFixture) -> None:
    clock = ServerClock(Own(ahead))
    heard(clock)
    assert (clock.now(), clock.ahead) == (SERVER, ahead)
    assert clock.by_own_clock(clock.now() + 60) == SERVER + ahead + 60
    heard(clock)
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert f"{ahead:+.0f} s" in caplog.text


@pytest.mark.parametrize("ahead", [0.9, -0.9, TOLERANCE_SECONDS])
def test_small_difference_is_that_of_the_way(ahead: float, caplog: pytest.LogCaptureFixture) -> None:
    clock = ServerClock(Own(ahead))
    heard(clock)
    assert (clock.now(), clock.ahead, caplog.text) == (SERVER + ahead, 0.0, "")


def test_correction_changes_by_no_fractions_and_ends_with_the_difference() -> None:
    own = Own(600.0)
    clock = ServerClock(own)
    heard(clock)
    own.ahead = 600.9
    heard(clock)
    assert clock.ahead == 600.0
    own.ahead = 700.0
    heard(clock)
    assert clock.ahead == 700.0
    own.ahead = 0.0
    heard(clock)
    assert (clock.ahead, clock.now()) == (0.0, SERVER)


def test_late_answers_and_answers_without_a_time_change_nothing() -> None:
    clock = ServerClock(Own(DAY))
    heard(clock, LONGEST_ANSWER_SECONDS + 1)
    for date in (None, "", "yesterday"):
        clock.heard(date, 0.1)
    assert clock.ahead == 0.0
