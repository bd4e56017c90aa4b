"""Resuming after a crash: from the newest published checkpoint, with the same ledger, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from tensafe_api.resources.ledger import Outcome
from tensorguard.aggregation.channel import check_all_reduce_wraps
from tensorguard.checkpoint.layout import ADAPTER_WEIGHTS
from tensorguard.checkpoint.optimizer_state import OPTIMIZER, dump_optimizer
from tensorguard.ledger.file import FileLedger
from tensorguard.models.adapter import adapter_state
from tensorguard.training import budget_gate
from tensorguard.training.checkpointing import restore_checkpoint
from tensorguard.training.config import RUN_LOG, TRACEBACKS
from tensorguard.training.run_log import LogRecord, Started, Stepped
from tensorguard.training.setup import set_up
from tensorguard.training.stop_signal import STOP_FILE as STOP
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.worker import train
from tests.support.programs.s3 import BUCKET, S3
from tests.support.trainer.rank_harness import Job, SingleRankChannel

Break = Callable[[int | None], None]
FILES = (
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "manifest.json",
    "optimizer.safetensors",
    "statement.json",
    "statement.md",
    "trainer_state.json",
)
CPU = torch.device("cpu")


def checkpoint(job: Job, step: int) -> Path:
    return job.directory / "checkpoints" / f"step-{step:06d}-a1i1"


def refused(job: Job) -> tuple[str, str]:
    """Run the next attempt, which must charge and reveal nothing; return its reason and message."""
    charged = job.ledger().steps_charged
    job.train_alone()
    assert job.ledger().steps_charged == charged
    ended = job.ended()
    assert ended.attempt == job.attempt
    return ended.reason, ended.message


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_resumed_run_starts_at_the_newest_checkpoint_and_charges_again(halted: Job) -> None:
    before = halted.ledger()
    assert (before.steps_charged, before.steps_recharged) == (6, 0)
    halted.train_alone()
    after = halted.ledger()
    assert halted.ended().reason == "Completed"
    assert [(charge.attempt, charge.steps) for charge in after.charges] == [(1, 6), (2, 3)]
    assert after.steps_recharged == 2  # steps 5 and 6
    started = [record for record in halted.records() if isinstance(record, Started)]
    assert [(each.attempt, each.incarnation, each.step) for each in started] == [(1, 1, 0), (2, 1, 4)]
    assert [record.step for record in halted.records() if isinstance(record, Stepped)][-3:] == [5, 6, 7]


@pytest.mark.slow
def test_epsilon_of_a_resumed_run_counts_every_charge(halted: Job) -> None:
    broken = halted.plan.epsilon(halted.ledger().steps_charged)
    halted.train_alone()
    privacy = halted.status().privacy
    assert (privacy.steps_charged, privacy.steps_recharged, privacy.steps_planned) == (9, 2, 7)
    assert float(privacy.epsilon_spent) >= halted.plan.epsilon(9) > halted.plan.epsilon(7) > broken
    assert privacy.epsilon_claimed == privacy.epsilon_spent
    final = json.loads(halted.store().read("final")["statement.json"])
    assert final["spent"] == {
        "epsilon": privacy.epsilon_spent,
        "stepsCharged": 9,
        "stepsRecharged": 2,
        "stepsPlanned": 7,
    }
    assert halted.status().checkpoints[-1].epsilon == privacy.epsilon_spent


@pytest.mark.slow
def test_weights_and_optimizer_state_are_restored_bit_for_bit(halted: Job) -> None:
    parts = set_up(halted.config(), 0, CPU)
    fresh = adapter_state(parts.model)
    published = halted.ledger().checkpoints[-1]
    state = restore_checkpoint(parts.store, checkpoint(halted, 4).name, published.digest, parts.model, parts.optimizer)
    files = halted.store().read(checkpoint(halted, 4).name)
    saved = load(files[ADAPTER_WEIGHTS])
    restored = adapter_state(parts.model)
    assert restored.keys() == saved.keys()
    assert all(torch.equal(restored[key], saved[key]) for key in saved)
    assert not all(torch.equal(fresh[key], saved[key]) for key in saved)
    assert dump_optimizer(parts.optimizer) == files[OPTIMIZER]
    assert (state.step, state.attempt, state.incarnation) == (4, 1, 1)


@pytest.mark.slow
def test_optimizer_state_counts_every_step_of_the_published_adapter(halted: Job) -> None:
    """AdamW counts its steps. A resume without its state would count only the last two."""
    halted.train_alone()
    state = load(halted.store().read("step-000006-a2i1")[OPTIMIZER])
    assert {float(state[key]) for key in state if key.endswith(".step")} == {6.0}
    assert OPTIMIZER not in halted.store().read("final"), "no step follows"


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=[] if file in ("adapter_model.safetensors", "manifest.json") else pytest.mark.slow)
        for file in FILES
    ],
)
def test_checkpoint_with_a_changed_file_is_refused(halted: Job, file: str) -> None:
    assert {path.name for path in checkpoint(halted, 4).iterdir()} == set(FILES)
    flip(checkpoint(halted, 4) / file)
    reason, message = refused(halted)
    assert reason == "CheckpointCorrupt"
    assert checkpoint(halted, 4).name in message
    assert file in message or file == "manifest.json"
    assert "move it away" in message

    shutil.move(checkpoint(halted, 4), halted.directory / "moved-away")  # the fix that the message names
    halted.train_alone()
    assert halted.ended().reason == "Completed"
    assert halted.ledger().steps_recharged == 4


def test_checkpoint_that_was_rewritten_consistently_is_refused(halted: Job) -> None:
    """The files fit their manifest. Only the ledger has the digest of the checkpoint that was published."""
    store, name = halted.store(), checkpoint(halted, 4).name
    published = halted.ledger().checkpoints[-1]
    files = store.read(name, published.digest)
    weights = {key: tensor + 1 for key, tensor in load(files[ADAPTER_WEIGHTS]).items()}
    files[ADAPTER_WEIGHTS] = save(weights, metadata={"format": "pt"})
    assert store.write(name, files) != published.digest
    assert store.read(name) == files
    reason, message = refused(halted)
    assert reason == "CheckpointCorrupt"
    assert f"{name} is not the checkpoint that the ledger recorded" in message


def test_checkpoint_with_a_missing_file_is_refused(halted: Job) -> None:
    (checkpoint(halted, 4) / "optimizer.safetensors").unlink()
    reason, message = refused(halted)
    assert reason == "CheckpointCorrupt"
    assert "lacks optimizer.safetensors" in message


@pytest.mark.slow
def test_run_without_its_newest_checkpoint_resumes_from_the_one_before(halted: Job) -> None:
    shutil.rmtree(checkpoint(halted, 4))
    halted.train_alone()
    assert halted.ended().reason == "Completed"
    assert halted.ledger().steps_recharged == 4
    assert halted.ledger().steps_charged == 6 + 5


@pytest.mark.slow
def test_run_without_checkpoints_restarts_and_keeps_its_charges(halted: Job) -> None:
    shutil.rmtree(halted.directory / "checkpoints")
    halted.train_alone()
    assert halted.ended().reason == "Completed"
    assert halted.ledger().steps_charged == 6 + 7


@pytest.mark.slow
def test_checkpoint_that_the_ledger_never_recorded_is_not_used(halted: Job) -> None:
    """A crash between writing and recording leaves such a checkpoint."""
    shutil.copytree(checkpoint(halted, 4), checkpoint(halted, 6))
    halted.train_alone()
    started = [record.step for record in halted.records() if isinstance(record, Started)]
    assert started == [0, 4]
    assert halted.ended().reason == "Completed"


def test_an_edited_ledger_is_refused(halted: Job) -> None:
    path = halted.directory / "ledger.jsonl"
    path.write_text(path.read_text().replace('"steps":1', '"steps":0', 1))
    with pytest.raises(Exception, match="was edited: entry"):
        halted.ledger()
    halted.train_alone()
    assert (halted.ended().reason, halted.ended().attempt) == ("LedgerCorrupt", 2)
    assert "was edited: entry" in halted.ended().message
    assert "restore the file" in halted.ended().message


@pytest.mark.parametrize("compared", ["run log", "checkpoint"])
def test_ledger_with_removed_entries_is_refused(halted: Job, compared: str) -> None:
    if compared == "checkpoint":
        (halted.directory / RUN_LOG).unlink()
    path = halted.directory / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]))  # a valid chain, in which only the first step was charged
    assert halted.ledger().steps_charged == 1
    reason, message = refused(halted)
    assert reason == "LedgerCorrupt"
    messages = {"run log": "has 1 charged steps, but", "checkpoint": "shorter than it was when"}
    assert messages[compared] in message
    assert "restore the latest ledger" in message


def test_ledger_of_another_run_is_refused_beside_the_same_checkpoints(halted: Job, tmp_path: Path) -> None:
    other = Job.make(tmp_path / "other", "spec.cluster.workers=1", "spec.training.steps=7")
    shutil.copy(other.directory / "ledger.jsonl", halted.directory / "ledger.jsonl")
    (halted.directory / RUN_LOG).unlink()
    reason, message = refused(halted)
    assert reason == "LedgerCorrupt"
    assert "shorter than it was when" in message


def test_incomplete_last_line_is_not_taken_for_an_edit(halted: Job) -> None:
    with (halted.directory / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"kind":"charge","ste')
    halted.train_alone()
    assert halted.ended().reason == "Completed"
    assert halted.ledger().steps_charged == 9


def test_resume_with_other_data_is_refused(halted: Job) -> None:
    halted.digest = "digest-of-other-data"
    reason, message = refused(halted)
    assert reason == "ConfigurationChanged"
    assert "data set" in message


@pytest.mark.parametrize("change", [{"rank": 4}, {"variant": "FrozenA"}])
def test_resume_with_another_adapter_is_refused(halted: Job, change: dict[str, Any]) -> None:
    lora = halted.job.spec.lora.model_copy(update=change)
    halted.job = halted.job.model_copy(update={"spec": halted.job.spec.model_copy(update={"lora": lora})})
    reason, message = refused(halted)
    assert reason == "ConfigurationChanged"
    assert "spec.lora" in message


@pytest.mark.slow
def test_second_restart_without_progress_fails_the_attempt(alone: Job, break_at: Break) -> None:
    """Ray restarts the workers after every failure. A failure that repeats must not spend the budget."""
    break_at(2)  # the first step after the first checkpoint
    for restart in (False, True):
        with pytest.raises(RuntimeError):
            alone.train_alone(restart=restart)
    charged = alone.ledger().steps_charged
    assert charged == 3 + 1
    alone.train_alone(restart=True)
    assert alone.ended().reason == "NoProgress"
    assert f"(tracebacks: {alone.private.path}/{TRACEBACKS.format(process='rank0')})" in alone.ended().message
    assert "Broken" in alone.errors()
    assert alone.ledger().steps_charged == charged

    break_at(None)  # a user fixes the cause, and resumes
    alone.train_alone()
    assert alone.ended().reason == "Completed"


@pytest.mark.slow
def test_restart_after_a_requested_stop_is_not_counted_as_failed(alone: Job, break_at: Break) -> None:
    """A pod, and its successor, may each be asked to terminate before they have run a step."""
    alone.attempt = 1
    StopSignal.of(alone.directory).request()
    for _ in range(3):
        alone.train_alone(restart=True)
        assert alone.ended().reason == "Interrupted"
    (alone.directory / STOP).unlink()
    break_at(1)
    with pytest.raises(RuntimeError):
        alone.train_alone(restart=True)
    break_at(None)
    alone.train_alone(restart=True)
    assert alone.ended().reason == "Completed"


@pytest.mark.slow
@pytest.mark.parametrize("after_charged_steps", [True, False])
def test_stop_after_the_charged_steps_loses_none_of_them(
    tmp_path: Path, after_charged_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a chunk of three steps, the stop is requested after step 2, when steps 3 and 4 are charged."""
    monkeypatch.setattr(budget_gate, "CHUNK_SECONDS", 1e9)
    job = Job.make(tmp_path / "run", "spec.cluster.workers=1", "spec.training.steps=300")
    stop = StopSignal.of(job.directory)

    def listen(record: LogRecord) -> None:
        if isinstance(record, Stepped) and record.step == 2:
            stop.request(after_charged_steps=after_charged_steps)

    job.attempt = 1
    train(job.config(), SingleRankChannel(), CPU, listen)
    ledger = job.ledger()
    assert (ledger.steps_charged, ledger.outcome) == (4, "Suspended")
    assert ledger.checkpoints[-1].step == (4 if after_charged_steps else 2)
    assert job.ended().reason == "Interrupted"


@pytest.mark.slow
def test_restart_after_progress_is_allowed(alone: Job, break_at: Break) -> None:
    for number, step in enumerate((3, 5)):
        break_at(step)
        with pytest.raises(RuntimeError):
            alone.train_alone(restart=number > 0)
    break_at(None)
    alone.train_alone(restart=True)
    assert alone.ended().reason == "Completed"
    assert alone.ledger().incarnation == 3
    assert alone.status().attempts[0].restarts == 2


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["before", "after"])
def test_crash_after_the_final_checkpoint_leaves_it_as_recorded(
    alone: Job, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    record = FileLedger.record_outcome

    def failing(ledger: FileLedger, recorded: Outcome) -> None:
        if outcome == "after":
            record(ledger, recorded)
        raise RuntimeError("a crash")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="a crash"):
        patch.setattr(FileLedger, "record_outcome", failing)
        alone.train_alone()
    final_files = alone.store().read("final")
    charged = alone.ledger().steps_charged
    alone.train_alone(restart=True)
    assert alone.ended().reason == "Completed"
    assert alone.ledger().outcome == "Completed"
    assert alone.ledger().steps_charged == charged
    assert alone.store().read("final", alone.ledger().checkpoints[-1].digest) == final_files


def test_single_rank_channel_wraps() -> None:
    """The replacement of a process group passes the check that the trainer makes of a real one."""
    check_all_reduce_wraps(SingleRankChannel())


@pytest.mark.slow
def test_job_resumes_from_an_object_store(tmp_path: Path, s3_bucket: S3, break_at: Break) -> None:
    """The job fails after its fourth step and resumes there; only checkpoints that the ledger recorded are left."""
    job = Job.make(
        tmp_path / "run",
        "spec.cluster.workers=1",
        "spec.training.steps=7",
        "spec.checkpoint.everySteps=2",
        "spec.checkpoint.keep=1",
        f"spec.checkpoint.uri=s3://{BUCKET}/claims/triage",
        f"spec.storage.endpoint={s3_bucket.endpoint}",
    )
    break_at(4)
    with pytest.raises(RuntimeError):
        job.train_alone()
    break_at(None)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    started = [record.step for record in job.records() if isinstance(record, Started)]
    assert started == [0, 4]
    assert job.store().names() == ["final", "step-000006-a2i1"]
    final = job.ledger().checkpoints[-1]
    assert final.uri == f"s3://{BUCKET}/claims/triage/final"
    assert ADAPTER_WEIGHTS in job.store().read("final", final.digest)
    stored = {key.split("/")[2] for key in s3_bucket.objects("claims/")}
    assert stored == {"final", "step-000006-a2i1"}
    assert not (tmp_path / "run" / "checkpoints").exists()
