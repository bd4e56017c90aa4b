"""A ledger is trusted only if the checkpoints, the run log and the plan agree with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensafe_api.resolve import ledger_spec
from tensorguard.checkpoint.store import CheckpointConflict
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, TrainerState
from tensorguard.ledger.contract import LedgerCorrupt, LedgerState
from tensorguard.ledger.file import NAME, FileLedger
from tensorguard.runners.local.status import status_from_run
from tensorguard.training.config import RUN_LOG
from tensorguard.training.rollback_check import check_charged, check_checkpoints, check_same_job, read_checked
from tensorguard.training.run_log import RunLog, Stepped, steps_charged_in
from tensorguard.training.worker import Worker
from tests.support.trainer.rank_harness import Job, SingleRankChannel


def attempt(job: Job) -> tuple[str, str]:
    """Run the next attempt, which must charge nothing; return its reason and message."""
    charged = job.ledger().steps_charged
    job.train_alone()
    assert job.ledger().steps_charged == charged
    return job.ended().reason, job.ended().message


@pytest.mark.slow
def test_charges_removed_after_the_last_checkpoint_are_detected(halted: Job) -> None:
    """Six steps were charged. The last checkpoint records four of them, the run log five."""
    ledger = halted.directory / NAME
    lines = ledger.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    last_published = max(number for number, kind in enumerate(kinds) if kind == "release")
    ledger.write_bytes(b"".join(lines[: last_published + 1]))
    assert halted.ledger().steps_charged < steps_charged_in(halted.directory / RUN_LOG)
    reason, message = attempt(halted)
    assert reason == "LedgerCorrupt"
    assert "restore the latest ledger" in message


@pytest.mark.slow
def test_a_ledger_can_be_read_while_its_job_charges_steps(halted: Job) -> None:
    class Charging(FileLedger):
        """A ledger whose job charges and logs one more step right after a read."""

        def read(self) -> LedgerState:
            state = super().read()
            log = RunLog(halted.directory / RUN_LOG)
            log.write(Stepped("2026-01-01T00:00:00Z", state.steps_charged + 1, state.steps_charged + 1))
            log.close()
            return state

    log = halted.directory / RUN_LOG
    assert read_checked(Charging(halted.directory), log) == halted.ledger()
    with pytest.raises(LedgerCorrupt, match=f"has 6 charged steps, but {log} records 7: entries were removed"):
        read_checked(FileLedger(halted.directory), halted.directory / RUN_LOG)


def test_ledger_of_another_plan_is_not_charged(alone: Job) -> None:
    plan = replace(alone.plan, mechanism=alone.plan.mechanism.model_copy(update={"noise_multiplier": "5"}))
    (alone.directory / NAME).unlink()
    FileLedger.create(alone.directory, ledger_spec(alone.job, plan, "tiny-uid"))
    reason, message = attempt(alone)
    assert reason == "ConfigurationChanged"
    assert "another plan" in message


@pytest.mark.slow
def test_checkpoints_of_another_job_are_neither_resumed_nor_overwritten(tmp_path: Path, halted: Job) -> None:
    overrides = [
        "spec.cluster.workers=1",
        "spec.training.steps=2",
        f"spec.checkpoint.uri={halted.directory}/checkpoints",
    ]
    other = Job.make(tmp_path / "other", *overrides)
    (other.directory / NAME).unlink()
    FileLedger.create(other.directory, ledger_spec(other.job, other.plan, "another-uid"))
    other.job_uid = "another-uid"
    before = sorted(path.name for path in (halted.directory / "checkpoints").iterdir())
    reason, message = attempt(other)
    assert reason == "InvalidManifest"
    assert "is the checkpoint of another job; set spec.checkpoint.uri to another location" in message
    assert sorted(path.name for path in (halted.directory / "checkpoints").iterdir()) == before


@pytest.mark.slow
def test_two_copies_of_a_run_do_not_publish_to_one_location(alone: Job, tmp_path: Path) -> None:
    """Each copy spends what the other's statement leaves out. So the second one to write a checkpoint is refused."""
    copy = replace(alone, directory=tmp_path / "copy")
    copy.directory.mkdir()
    shutil.copy(alone.directory / NAME, copy.directory / NAME)
    shutil.copytree(alone.private.path, copy.private.path)
    copy.attempt = 1
    second = Worker(copy.config(), SingleRankChannel(), torch.device("cpu"))
    second.start()
    alone.train_alone()
    published = alone.store().names()
    with pytest.raises(LedgerCorrupt, match="the ledger is shorter than it was when"):
        second.run_steps()
    second.close()
    assert alone.store().names() == published


@pytest.mark.slow
def test_spending_under_a_lost_ledger_is_not_reported_as_zero(halted: Job) -> None:
    halted.train_alone()
    status = status_from_run(halted.job, halted.plan, None, halted.records(), halted.ended())
    assert status.privacy.epsilon_spent is None
    assert status.privacy.epsilon_claimed is None
    assert status.privacy.steps_charged is None


def test_ledger_of_another_run_is_named_by_what_differs(alone: Job) -> None:
    state, expected = alone.ledger(), ledger_spec(alone.job, alone.plan, "tiny-uid")
    check_same_job(state, expected)
    other = expected.model_copy(update={"job_uid": "other-uid", "planned_steps": 1})
    with pytest.raises(LedgerCorrupt, match=r"they differ in job_uid, planned_steps; restore"):
        check_same_job(state, other)


def test_charges_without_a_run_log_cannot_be_checked(halted: Job) -> None:
    path = halted.directory / RUN_LOG
    assert read_checked(FileLedger(halted.directory), path).steps_charged == 6
    path.unlink()
    with pytest.raises(LedgerCorrupt, match=r"events\.jsonl is missing, and the ledger beside it cannot be checked"):
        read_checked(FileLedger(halted.directory), path)


def test_new_ledger_needs_no_run_log(alone: Job) -> None:
    assert read_checked(FileLedger(alone.directory), alone.directory / RUN_LOG).steps_charged == 0


def test_ledger_may_have_more_charges_than_were_logged_but_not_fewer(halted: Job) -> None:
    state = halted.ledger()
    for logged in (0, 5, 6):
        check_charged(state, logged, Path("log"))
    with pytest.raises(LedgerCorrupt, match="the ledger has 6 charged steps, but log records 7"):
        check_charged(state, 7, Path("log"))


class Checked:
    """A store and a ledger for one checkpoint, which was written with a ledger of `length` entries."""

    def __init__(self, length: int, uid: str = "uid") -> None:
        self.length, self.uid = length, uid
        self.asked: list[Any] = []

    def names(self) -> list[str]:
        return ["step-1", "step-2"]

    def uri(self, name: str) -> str:
        return f"s3://b/{name}"

    def read(self, name: str = "", only: Collection[str] | None = None) -> Any:
        if not name:
            return SimpleNamespace(spec=SimpleNamespace(job_uid="uid"))
        self.asked.append((name, only))
        return {TRAINER_STATE: TrainerState(self.uid, 1, 1, 1, f"head {name}", self.length).dump()}

    def extends(self, head: str, length: int) -> bool:
        self.asked.append(head)
        return length <= 9


def test_every_checkpoint_is_compared_with_the_ledger() -> None:
    both: Any = Checked(9)
    check_checkpoints(both, both)
    assert both.asked == [
        ("step-1", (TRAINER_STATE,)),
        "head step-1",
        ("step-2", (TRAINER_STATE,)),
        "head step-2",
    ]
    shorter: Any = Checked(10)
    with pytest.raises(LedgerCorrupt, match="the ledger is shorter than it was when s3://b/step-1 was written"):
        check_checkpoints(shorter, shorter)
    other: Any = Checked(9, uid="other")
    with pytest.raises(CheckpointConflict, match="s3://b/step-1 is the checkpoint of another job"):
        check_checkpoints(other, other)
