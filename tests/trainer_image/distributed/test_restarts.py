"""`fit` on its own Ray cluster: one of two workers is killed, then the process receives SIGTERM."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tensorguard.distributed import DistributedDPConfig, TenSafeCallback, TenSafeTrainer, TenSafeTrainingConfig
from tensorguard.integrations import TensorBoardCallback
from tensorguard.ledger.file import FileLedger
from tests.support.trainer.command import CHECKPOINT_STEPS, kill_rank_0
from tests.support.trainer.rank_harness import make_model, records

pytestmark = pytest.mark.ray


def test_run_continues_after_a_killed_worker_and_after_sigterm(tmp_path: Path) -> None:
    """Ray restarts the workers. SIGTERM saves a checkpoint before it has its usual effect. A second call resumes.

    A tracker shows all of it as one run, with every step that was taken.
    """

    class Terminated(BaseException):
        pass

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    run_folder = tmp_path / "models" / "run"

    class Fails(TenSafeCallback):
        killed_at = 0
        terminated = False

        def on_step(self, trainer: TenSafeTrainer, step: int) -> None:
            ledger = FileLedger(run_folder).read()
            if ledger.incarnation == 2 and not self.terminated:
                self.terminated = True
                os.kill(os.getpid(), signal.SIGTERM)
            if step >= 14 and not self.killed_at:
                self.killed_at = ledger.steps_charged
                kill_rank_0(run_folder)

    make_model(tmp_path / "model")
    config = TenSafeTrainingConfig(
        model_name=str(tmp_path / "model"),
        num_labels=2,
        num_epochs=30,
        per_device_batch_size=5,
        gradient_accumulation_steps=2,
        max_seq_length=16,
        checkpoint_dir=tmp_path / "models",
        checkpoint_frequency=CHECKPOINT_STEPS,
        unit_at_least=200,
        dp_config=DistributedDPConfig(target_epsilon=20.0),
    )
    fails = Fails()
    handler = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(Terminated) as ended:
            TenSafeTrainer(config, [fails, TensorBoardCallback(tmp_path / "board")]).fit(records(240))
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert "saved a checkpoint" in ended.value.__notes__[0]
    ledger = FileLedger(run_folder).read()
    published = ledger.checkpoints[-1]
    assert (ledger.attempt, ledger.incarnation, published.final) == (1, 2, False)
    assert ledger.start_steps[0] == 0 < ledger.start_steps[1]
    assert ledger.steps_recharged > 0
    assert fails.killed_at < ledger.steps_charged >= published.step + ledger.steps_recharged

    class FirstStep(TenSafeCallback):
        first: int | None = None
        spent: float

        def on_step(self, trainer: TenSafeTrainer, step: int) -> None:
            if self.first is None:
                self.first, self.spent = step, trainer.epsilon_spent

    first_step = FirstStep()
    callbacks = [first_step, TensorBoardCallback(tmp_path / "board")]
    result = TenSafeTrainer(config, callbacks).fit(records(240), resume_from_checkpoint=published.uri)
    assert first_step.first == published.step + 1
    assert first_step.spent > 0
    assert result.phase == "Succeeded" and result.metrics["steps"] == 300
    charged = FileLedger(run_folder).read().steps_charged
    assert charged >= 300 + ledger.steps_recharged

    board = EventAccumulator(str(tmp_path / "board"), size_guidance={"scalars": 0})
    board.Reload()
    steps = board.Scalars("train/global_step")
    assert [event.step for event in steps] == list(range(1, len(steps) + 1))
    assert {event.value for event in steps} == set(range(1, 301))
    assert len(steps) > 300, "steps that ran again are there twice"
    assert board.Scalars("dp/steps_charged")[-1].value == charged
    assert board.Scalars("dp/epsilon")[-1].value == pytest.approx(result.metrics["dp_epsilon"], abs=1e-3)
    assert board.Tensors("statement/text_summary")
