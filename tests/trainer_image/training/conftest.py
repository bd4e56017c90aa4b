"""Jobs of one worker that train in this process, and a fixture that breaks one of their steps."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tensorguard.aggregation.header import Header, HeaderAgreement
from tests.support.trainer.rank_harness import Job


class Broken(RuntimeError):
    """The error of a step that a test has broken."""


Break = Callable[[int | None], None]

_agree = HeaderAgreement.agree


@pytest.fixture
def break_at(monkeypatch: pytest.MonkeyPatch) -> Break:
    """`break_at(5)`: step 5 (from 0) fails after its charge and before its reveal; `break_at(None)` repairs it."""
    return partial(_break_at, monkeypatch)


@pytest.fixture
def alone(tmp_path: Path) -> Job:
    """A job of one worker with seven steps and a checkpoint after every second one."""
    return _make_alone(tmp_path / "run")


@pytest.fixture(scope="module")
def halted_once(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job of `halted`, which is run once for all tests of a file."""
    job = _make_alone(tmp_path_factory.mktemp("halted") / "run")
    with pytest.MonkeyPatch.context() as patch:
        _break_at(patch, 5)
        with pytest.raises(Broken):
            job.train_alone()
    shutil.copytree(job.directory, job.directory.with_name("copy"))
    return job


@pytest.fixture
def halted(halted_once: Job) -> Job:
    """The same job, broken in its sixth step: six steps charged, five revealed, checkpoints of steps 2 and 4.

    Its folder is put back for each test. The path stays the same, because manifest and ledger contain it.
    """
    shutil.rmtree(halted_once.directory)
    shutil.copytree(halted_once.directory.with_name("copy"), halted_once.directory)
    return copy.copy(halted_once)


def _make_alone(directory: Path) -> Job:
    one_micro_batch = "spec.training.microBatchSize=32"
    schedule = ("spec.training.steps=7", "spec.checkpoint.everySteps=2")
    return Job.make(directory, "spec.cluster.workers=1", *schedule, one_micro_batch)


def _break_at(patch: pytest.MonkeyPatch, step: int | None) -> None:
    def agreeing(agreement: HeaderAgreement, header: Header, stop: bool) -> bool:
        if header.step == step:
            raise Broken
        return _agree(agreement, header, stop)

    patch.setattr(HeaderAgreement, "agree", agreeing)
