"""`fit` with a local runner that trains nothing: what it passes on, calls, returns and raises."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensorguard.distributed import (
    ConfigurationError,
    DistributedDPConfig,
    PrivacyBudgetExceeded,
    RayTimeoutError,
    TenSafeCallback,
    TenSafeTrainer,
    TenSafeTrainingConfig,
    TrainingFailed,
)
from tensorguard.ledger.contract import LedgerCorrupt
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.preflight import RunRefused

pytestmark = pytest.mark.usefixtures("foreground_signals")

RECORDS = [{"text": f"note {number}", "label": number % 2} for number in range(200)]
Make = Callable[..., TenSafeTrainingConfig]


class Recorder(TenSafeCallback):
    """Records its calls, and calls `at_step` in each step."""

    def __init__(self, at_step: Callable[[TenSafeTrainer, int], None] = lambda trainer, step: None) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self.epsilons: list[float] = []
        self._at_step = at_step

    def on_train_begin(self, trainer: TenSafeTrainer) -> None:
        self.calls.append(("begin", None))

    def on_step(self, trainer: TenSafeTrainer, step: int) -> None:
        assert trainer.step == step
        self.calls.append(("step", step))
        self.epsilons.append(trainer.epsilon_spent)
        self._at_step(trainer, step)

    def on_epoch_end(self, trainer: TenSafeTrainer, epoch: int) -> None:
        self.calls.append(("epoch", epoch))

    def on_train_end(self, trainer: TenSafeTrainer) -> None:
        self.calls.append(("end", None))


def test_result_has_epsilon_and_evaluation(fake: Any, config: Make, tmp_path: Path) -> None:
    fake.losses = (0.9, 0.5, 0.7)
    result = TenSafeTrainer(config()).fit(RECORDS, eval_dataset=RECORDS[:10])
    privacy = result.job.status.privacy
    assert result.phase == "Succeeded"
    assert result.metrics["dp_epsilon"] == float(privacy.epsilon_claimed) > 0
    assert result.metrics["dp_delta"] == 0.0005
    assert (result.metrics["best_eval_loss"], result.metrics["final_eval_loss"]) == (0.5, 0.7)
    assert result.metrics["steps"] == result.metrics["total_steps"] == 10
    assert result.metrics["steps_claimed"] == result.metrics["steps_charged"] == 10
    assert result.checkpoint == str(tmp_path / "checkpoints" / "step-10")
    assert result.output_dir == tmp_path / "checkpoints" / "run"


def test_runner_receives_data_folder_and_timeout(fake: Any, config: Make, tmp_path: Path) -> None:
    held_out = RECORDS[:5]
    TenSafeTrainer(config(ray_timeout=30, output_dir=tmp_path / "run")).fit(RECORDS, held_out)
    (call,) = fake.calls
    assert call["data"].train is RECORDS and call["data"].evaluation is held_out
    assert (call["output_dir"], call["timeout"], call["resume"]) == (tmp_path / "run", 30, False)


def test_private_data_is_refused_as_evaluation_set(fake: Any, config: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"eval_dataset: it is train_dataset.*pass a public data set"):
        TenSafeTrainer(config()).fit(RECORDS, eval_dataset=RECORDS)
    assert fake.calls == []


@pytest.mark.slow
def test_callbacks_are_called_in_order_with_the_epsilon_of_the_ledger(fake: Any, config: Make) -> None:
    recorder = Recorder()
    trainer = TenSafeTrainer(config(num_epochs=2), [recorder])
    assert trainer.epsilon_spent == 0.0 and trainer.total_steps == 0
    result = trainer.fit(RECORDS)
    steps = [("step", step) for step in range(1, 21)]
    assert recorder.calls == [
        ("begin", None),
        *steps[:10],
        ("epoch", 1),
        *steps[10:],
        ("epoch", 2),
        ("end", None),
    ]
    assert recorder.epsilons == sorted(recorder.epsilons) and len(set(recorder.epsilons)) == 20
    assert recorder.epsilons[-1] == trainer.epsilon_spent <= result.metrics["dp_epsilon"] <= 8
    assert trainer.total_steps == 20


@pytest.mark.slow
def test_epochs_of_a_fractional_number_of_steps_end_once_each(fake: Any, config: Make) -> None:
    recorder = Recorder()
    TenSafeTrainer(config(num_epochs=3, unit_at_least=210), [recorder]).fit(RECORDS)  # 10.5 steps an epoch
    assert len(recorder.epsilons) == 32
    at = [recorder.calls[i - 1][1] for i, call in enumerate(recorder.calls) if call[0] == "epoch"]
    assert at == [11, 21, 32]


def test_epsilon_includes_the_charge_of_the_running_step(fake: Any, config: Make) -> None:
    seen: list[float] = []
    trainer = TenSafeTrainer(config())
    fake.at_step = lambda step: seen.append(trainer.epsilon_spent)  # charged, and not yet reported
    trainer.fit(RECORDS)
    assert seen[0] > 0 and seen[-1] == trainer.epsilon_spent


def test_epsilon_of_a_ledger_with_fewer_charges_than_were_logged_is_refused(
    fake: Any, config: Make, tmp_path: Path
) -> None:
    trainer = TenSafeTrainer(config(output_dir=tmp_path / "run"))
    trainer.fit(RECORDS)
    ledger = tmp_path / "run" / LEDGER
    kept = [line for line in ledger.read_bytes().splitlines(keepends=True) if json.loads(line)["kind"] != "release"]
    ledger.write_bytes(b"".join(kept[:-1]))
    with pytest.raises(
        LedgerCorrupt, match=r"has 9 charged steps, but .*events\.jsonl records 10: entries were removed"
    ):
        trainer.epsilon_spent  # noqa: B018


def test_callback_can_stop_the_training(fake: Any, config: Make) -> None:
    recorder = Recorder(lambda trainer, step: trainer.stop() if step == 3 else None)
    result = TenSafeTrainer(config(), [recorder]).fit(RECORDS)
    assert result.phase == "Suspended"
    assert result.metrics["steps"] == 3
    assert result.metrics["dp_epsilon"] > result.metrics["dp_epsilon_spent"] > 0
    assert recorder.calls[-1] == ("end", None)


def test_stop_without_a_training_is_refused() -> None:
    config = TenSafeTrainingConfig(model_name="m", dp_config=DistributedDPConfig(target_epsilon=1))
    with pytest.raises(ConfigurationError, match="call fit first"):
        TenSafeTrainer(config).stop()


def test_exception_of_a_callback_stops_the_run_and_leaves_fit(fake: Any, config: Make, tmp_path: Path) -> None:
    def fail(trainer: TenSafeTrainer, step: int) -> None:
        if step == 4:
            raise LookupError("tracker is unavailable")

    first, second = Recorder(fail), Recorder()
    with pytest.raises(LookupError, match="tracker is unavailable") as raised:
        TenSafeTrainer(config(), [first, second]).fit(RECORDS)
    assert fake.calls[0]["stop"].requested
    assert FileLedger(tmp_path / "checkpoints" / "run").read().checkpoints[-1].step == 4
    assert "stopped after step 4" in raised.value.__notes__[0] and "resume_from_checkpoint" in raised.value.__notes__[0]
    assert second.calls[-2:] == [("step", 3), ("end", None)]


def test_failing_log_handler_stops_the_run_with_a_checkpoint(fake: Any, config: Make) -> None:
    class Shipping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if '"stepsCharged":3,' in record.getMessage():
                raise ConnectionResetError("the log server is gone")

    audit, handler = logging.getLogger("tensafe.audit"), Shipping()
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    try:
        with pytest.raises(ConnectionResetError, match="the log server is gone") as raised:
            TenSafeTrainer(config()).fit(RECORDS)
    finally:
        audit.removeHandler(handler)
        audit.setLevel(logging.NOTSET)
    assert "stopped after step 3 and saved a checkpoint; resume with" in raised.value.__notes__[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_a_checkpoint_before_its_usual_effect(
    fake: Any, config: Make, tmp_path: Path, number: signal.Signals
) -> None:
    class Ended(BaseException):
        pass

    def handler(*_: object) -> None:
        raise Ended

    before = signal.signal(number, handler)
    try:
        recorder = Recorder(lambda trainer, step: os.kill(os.getpid(), number) if step == 2 else None)
        with pytest.raises(Ended) as raised:
            TenSafeTrainer(config(), [recorder]).fit(RECORDS)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert FileLedger(tmp_path / "checkpoints" / "run").read().checkpoints[-1].step == 2
    assert "stopped after step 2" in raised.value.__notes__[0]


def test_sigterm_without_a_handler_prints_how_to_resume(
    fake: Any, config: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    received: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", received.append)  # it would end this process
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    recorder = Recorder(lambda trainer, step: os.kill(os.getpid(), signal.SIGTERM) if step == 2 else None)
    TenSafeTrainer(config(), [recorder]).fit(RECORDS)
    assert received == [signal.SIGTERM]
    last = capsys.readouterr().err.splitlines()[-1]
    assert "stopped after step 2 and saved a checkpoint; resume with fit(..., resume_from_checkpoint=" in last


def test_second_ctrl_c_takes_effect_immediately(fake: Any, config: Make, tmp_path: Path) -> None:
    def twice(step: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    fake.at_step = twice
    with pytest.raises(KeyboardInterrupt):
        TenSafeTrainer(config()).fit(RECORDS)
    assert FileLedger(tmp_path / "checkpoints" / "run").read().checkpoints == ()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_fit_on_another_thread_installs_no_signal_handlers(fake: Any, config: Make) -> None:
    results: list[Any] = []
    handlers: list[Any] = []
    fake.at_step = lambda step: handlers.append(signal.getsignal(signal.SIGINT))
    thread = threading.Thread(target=lambda: results.append(TenSafeTrainer(config()).fit(RECORDS)))
    thread.start()
    thread.join()
    assert results[0].phase == "Succeeded"
    assert set(handlers) == {signal.default_int_handler}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.PRIVACY_BUDGET_EXCEEDED, PrivacyBudgetExceeded),
        (Reason.WORKER_LOST, TrainingFailed),
        (Reason.RESOURCES_MISSING, RayTimeoutError),
    ],
)
def test_failure_is_raised_with_names_of_the_configuration(
    fake: Any, config: Make, reason: Reason, kind: type[Exception]
) -> None:
    fake.reason, fake.message = reason, "step 8 would exceed spec.privacy.targetEpsilon (8)"
    recorder = Recorder()
    with pytest.raises(kind, match=r"step 8 would exceed dp_config\.target_epsilon \(8\)") as raised:
        TenSafeTrainer(config(), [recorder]).fit(RECORDS)
    if isinstance(raised.value, TrainingFailed):
        assert raised.value.job.status.privacy.steps_charged == 10
    assert recorder.calls[-1] == ("end", None)


@pytest.mark.parametrize("reason", [Reason.MODEL_UNSUPPORTED, Reason.DATASET_UNREADABLE, Reason.CHECKPOINT_UNWRITABLE])
def test_fault_before_the_first_step_is_one_of_the_configuration(
    fake: Any, config: Make, reason: Reason, tmp_path: Path
) -> None:
    fake.reason, fake.message = reason, "spec.lora.targetModules: no such layer"
    with pytest.raises(TrainingFailed, match="lora_target_modules: no such layer"):
        TenSafeTrainer(config(checkpoint_dir=tmp_path / "other")).fit(RECORDS)
    fake.starts = False
    with pytest.raises(ConfigurationError, match=r"^lora_target_modules: no such layer$"):
        TenSafeTrainer(config()).fit(RECORDS)


def test_missing_data_and_model_are_named(config: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"^train_dataset: missing"):
        TenSafeTrainer(config()).fit(None)
    for name in (None, "", 7):
        with pytest.raises(ConfigurationError, match=r"^model_name: must be a hub id"):
            config(model_name=name)


def test_trainer_needs_a_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"config: a NoneType.*TenSafeTrainer\(TenSafeTrainingConfig\("):
        TenSafeTrainer(None)


def test_exhausted_budget_returns_a_result(fake: Any, config: Make) -> None:
    fake.reason = Reason.BUDGET_EXHAUSTED
    assert TenSafeTrainer(config()).fit(RECORDS).phase == "BudgetExhausted"


def test_epsilon_of_a_refused_folder_is_that_of_its_ledger(fake: Any, config: Make, tmp_path: Path) -> None:
    first = TenSafeTrainer(config())
    first.fit(RECORDS)
    fake.refusal = RunRefused("", "resume it by --resume, or name another --output-dir")
    noisier = TenSafeTrainer(config(dp_config=DistributedDPConfig(target_epsilon=8.0, noise_multiplier=50.0)))
    with pytest.raises(ConfigurationError):
        noisier.fit(RECORDS)
    assert noisier.epsilon_spent == first.epsilon_spent > 0


def test_refusal_has_names_of_the_configuration(fake: Any, config: Make) -> None:
    fake.refusal = RunRefused("", "resume it by --resume, or name another --output-dir")
    with pytest.raises(ConfigurationError, match="resume it by resume_from_checkpoint, or name another output_dir"):
        TenSafeTrainer(config()).fit(RECORDS)


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/run", "checkpoints/step-3", "checkpoints/step-3/", None])
def test_resume_accepts_every_address_of_the_run(fake: Any, config: Make, tmp_path: Path, place: str | None) -> None:
    stopper = Recorder(lambda trainer, step: trainer.stop() if step == 3 else None)
    trainer = TenSafeTrainer(config(), [stopper])
    trainer.fit(RECORDS)
    recorder = Recorder()
    result = TenSafeTrainer(config(), [recorder]).fit(
        RECORDS, resume_from_checkpoint=True if place is None else f"{tmp_path}/{place}"
    )
    assert fake.calls[1]["resume"] is True
    assert [step for name, step in recorder.calls if name == "step"] == list(range(4, 11))
    assert recorder.epsilons[0] > stopper.epsilons[-1]
    assert result.metrics["steps"] == 10


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("elsewhere", "for another run, set checkpoint_dir and output_dir to those of that run"),
        (
            "checkpoints/step-2",
            r"resumes from its newest checkpoint, .*/checkpoints/step-1 \(step 1\): pass checkpoint_dir",
        ),
        ("checkpoints/step_1000", r"step_1000 cannot be resumed: .* its newest checkpoint, .*/step-1 \(step 1\)"),
    ],
)
def test_resume_from_another_place_is_refused_with_what_can_be_resumed(
    fake: Any, config: Make, tmp_path: Path, place: str, sentence: str
) -> None:
    TenSafeTrainer(config(), [Recorder(lambda trainer, step: trainer.stop())]).fit(RECORDS)
    with pytest.raises(ConfigurationError, match=sentence):
        TenSafeTrainer(config()).fit(RECORDS, resume_from_checkpoint=tmp_path / place)
    assert len(fake.calls) == 1


def test_resume_of_a_run_without_a_checkpoint_names_its_first_step(fake: Any, config: Make, tmp_path: Path) -> None:
    fake.reason = Reason.WORKER_LOST
    with pytest.raises(TrainingFailed):
        TenSafeTrainer(config()).fit(RECORDS)
    with pytest.raises(ConfigurationError, match="resumes from its first step, because it has no checkpoint"):
        TenSafeTrainer(config()).fit(RECORDS, resume_from_checkpoint=tmp_path / "checkpoints" / "step-3")


def test_resume_from_a_checkpoint_without_a_ledger_is_refused(fake: Any, config: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no ledger in output_dir .* set output_dir to the folder"):
        TenSafeTrainer(config()).fit(RECORDS, resume_from_checkpoint=tmp_path / "checkpoints" / "step-3")
