"""What rank 0 acquires and sends to the other ranks, and the second restart without progress, which is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tensorguard.training.acquisition import Acquisition, _check_progress
from tensorguard.training.collective_errors import AttemptFailed

NAMED = Acquisition(3, 2**40, "step-000123-a64i2", "sha256:" + "f" * 64)


@pytest.mark.parametrize("acquisition", [NAMED, Acquisition(1, 0, "", ""), Acquisition(2, 9, "s" * 64, "d" * 71)])
def test_acquisition_is_unpacked_as_it_was_packed(acquisition: Acquisition) -> None:
    message = acquisition.pack()
    assert Acquisition.unpack(message) == acquisition
    assert len(message) == len(NAMED.pack()), "an all-gather needs messages of one length"


def check(starts: tuple[int, ...], step: int, *, attempt: int = 1, outcome: str | None = None) -> None:
    state: Any = SimpleNamespace(attempt=1, outcome=outcome, start_steps=starts)
    config: Any = SimpleNamespace(attempt=attempt, traceback_file=lambda process: f"/private/errors-{process}.log")
    _check_progress(state, config, step)


@pytest.mark.parametrize(
    ("starts", "step"),
    [((), 0), ((0,), 0), ((4,), 4), ((0, 4), 8), ((0, 4, 8), 4), ((4, 0), 4)],
    ids=["first start", "first restart", "restart at a checkpoint", "progress", "another step", "an older step"],
)
def test_restart_with_progress_is_allowed(starts: tuple[int, ...], step: int) -> None:
    check(starts, step)


@pytest.mark.parametrize("starts", [(0, 0), (0, 4, 4), (4, 4), (0, 4)])
def test_second_restart_at_the_same_step_is_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(AttemptFailed, match=rf"restarted at step {starts[-1]} and failed again.*errors-rankN.log"):
        check(starts, starts[-1])


def test_new_attempt_and_resume_after_a_stop_may_start_at_the_same_step() -> None:
    check((0, 4), 4, attempt=2)
    check((0, 4), 4, outcome="Suspended")
