"""Jobs of one worker that train in this process, and a fixture that breaks one of their steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.platform.trainer.rank_harness import Job
from tensorguard.aggregation.header import Header, HeaderAgreement
from tensorguard.privacy import noise


class Broken(RuntimeError):
    """The error of a step that a test has broken."""


Break = Callable[[int | None], None]

_noise_table = functools.lru_cache(maxsize=64)(noise._Table)


@pytest.fixture(autouse=True)
def shared_noise_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the noise tables of each σ once: a run builds them in 65 ms, and these tests start hundreds of runs."""
    monkeypatch.setattr(noise, "_Table", _noise_table)


@pytest.fixture
def break_at(monkeypatch: pytest.MonkeyPatch) -> Break:
    """`break_at(5)`: step 5 (from 0) fails after its charge and before its reveal; `break_at(None)` repairs it."""
    agree = HeaderAgreement.agree

    def break_at(step: int | None) -> None:
        def agreeing(agreement: HeaderAgreement, header: Header, stop: bool) -> bool:
            if header.step == step:
                raise Broken
            return agree(agreement, header, stop)

        monkeypatch.setattr(HeaderAgreement, "agree", agreeing)

    return break_at


@pytest.fixture
def alone(tmp_path: Path) -> Job:
    """A job of one worker with seven steps and a checkpoint after every second one."""
    return Job.make(tmp_path / "run", "spec.cluster.workers=1", "spec.training.steps=7", "spec.checkpoint.everySteps=2")


@pytest.fixture
def halted(alone: Job, break_at: Break) -> Job:
    """The same job, broken in its sixth step: six steps charged, five revealed, checkpoints of steps 2 and 4."""
    break_at(5)
    with pytest.raises(Broken):
        alone.train_alone()
    break_at(None)
    return alone
