"""The callbacks beside a training: what they start, and what a tracker that fails or hangs does to a step (nothing)."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tensorguard.integrations
from tensafe_api.reasons import Reason
from tensorguard.distributed import ConfigurationError, DistributedDPConfig, TenSafeTrainingConfig
from tensorguard.distributed._dispatch import CallbackDispatcher
from tensorguard.distributed._hooks import hooks_of
from tensorguard.integrations import MlflowCallback, TensorBoardCallback, WandbCallback
from tensorguard.runners.run_folder import lock_run_folder
from tensorguard.training.run_log import Stepped
from tensorguard.training.stop_signal import StopSignal
from tests.support.polling import wait_until
from tests.support.trainer.recorded_run import RecordedRun

HANG = "import time; print('started', flush=True); time.sleep(600)"
LONGEST_STEP_SECONDS = 0.5
"""A call of `on_step` takes microseconds; this is far below the time for which the trackers of these tests hang."""


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    """A trainer whose run's folder is `run` in the test's folder."""
    config = TenSafeTrainingConfig(
        model_name="tiny", dp_config=DistributedDPConfig(target_epsilon=8.0), output_dir=tmp_path / "run"
    )
    return SimpleNamespace(config=config, step=0, total_steps=20, epsilon_spent=0.0, stop=lambda: None)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the export by a Python script."""

    def replace(script: str) -> None:
        command = [sys.executable, "-S", "-c", script]
        monkeypatch.setattr("tensorguard.integrations._callbacks._TrackerCallback._command", lambda self: command)

    return replace


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB", "TENSORBOARD")) or "MLFLOW" in name]:
        monkeypatch.delenv(name)


def log_of(trainer: Any, tracker: str) -> str:
    return (Path(trainer.config.output_dir) / "trackers" / f"{tracker}.log").read_text()


def process_of(callback: Any) -> int:
    return int(callback._process.pid)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_hanging_tracker_delays_no_step_and_ends_with_the_training(
    trainer: Any, play: Any, caplog: pytest.LogCaptureFixture
) -> None:
    play(HANG)
    callback = TensorBoardCallback(wait_seconds=0.2)
    callback.on_train_begin(trainer)
    pid = process_of(callback)
    start = time.monotonic()
    for step in range(1, 1001):
        callback.on_step(trainer, step)
    assert time.monotonic() - start < LONGEST_STEP_SECONDS
    callback.on_train_end(trainer)
    assert not is_alive(pid)
    (record,) = caplog.records
    assert "did not receive everything within 0.2 seconds; the training is not affected" in record.getMessage()
    assert f"`tensafe export {trainer.config.output_dir} --to tensorboard`" in record.getMessage()


@pytest.mark.slow
@pytest.mark.parametrize("log_is_removed", [False, True])
def test_failing_tracker_is_reported_once_and_stops_nothing(
    trainer: Any, play: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, log_is_removed: bool
) -> None:
    play("import sys; sys.exit('tensafe export: wandb: no API key')")
    callback = WandbCallback()
    stop = StopSignal()
    run = RecordedRun(tmp_path / "recorded")
    hooks = hooks_of([callback], internal=False)
    dispatcher = CallbackDispatcher(trainer, hooks, run.job, run.plan, stop, None, lambda: (0, 0.0))
    dispatcher.begin()
    if log_is_removed:
        (Path(trainer.config.output_dir) / "trackers" / "wandb.log").unlink()
    os.waitid(os.P_PID, process_of(callback), os.WEXITED | os.WNOWAIT)
    for step in range(1, 4):
        dispatcher.dispatch(Stepped(0.0, step, step))
    dispatcher.end()
    assert dispatcher.error is None and not stop.requested
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    cause = "the export ended with exit code 1" if log_is_removed else "no API key"
    assert f"{cause}; the training is not affected" in caplog.text


def test_successful_export_is_silent(trainer: Any, play: Any, caplog: pytest.LogCaptureFixture) -> None:
    play("print('exported')")
    callback = WandbCallback()
    callback.on_train_begin(trainer)
    callback.on_train_end(trainer)
    assert not caplog.records
    assert log_of(trainer, "wandb") == "exported\n"


@pytest.mark.usefixtures("foreground_signals")
def test_ctrl_c_ends_the_wait_for_a_hanging_tracker(
    trainer: Any, play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export sends SIGINT once the callback waits for it, and again: Python drops what is raised in a finalizer."""
    waiting = tmp_path / "waiting"
    os.mkfifo(waiting)
    again = "[(os.kill(os.getppid(), signal.SIGINT), time.sleep(10)) for _ in range(20)]"
    play(f"import os, signal, time; open({str(waiting)!r}).read(); {again}; {HANG}")
    callback = WandbCallback(wait_seconds=300)  # more than the export needs to start on a slow machine
    callback.on_train_begin(trainer)
    pid, wait = process_of(callback), callback._process.wait

    def start_waiting(timeout: float | None = None) -> int:
        if timeout is not None:
            waiting.write_text("now")
        return int(wait(timeout))

    monkeypatch.setattr(callback._process, "wait", start_waiting)
    with pytest.raises(KeyboardInterrupt):
        callback.on_train_end(trainer)
    assert not is_alive(pid)


def test_ctrl_c_in_the_terminal_does_not_reach_the_export(trainer: Any, play: Any) -> None:
    play(HANG)
    callback = WandbCallback(wait_seconds=0.01)
    callback.on_train_begin(trainer)
    assert os.getsid(process_of(callback)) != os.getsid(0)
    callback.on_train_end(trainer)


def test_folder_that_cannot_be_written_is_reported(trainer: Any, caplog: pytest.LogCaptureFixture) -> None:
    Path(trainer.config.output_dir).write_text("a file")
    callback = WandbCallback()
    callback.on_train_begin(trainer)
    callback.on_step(trainer, 1)
    callback.on_train_end(trainer)
    assert "the training is not affected" in caplog.text


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (
            WandbCallback(project="notes", name="first", log_model="end"),
            {"WANDB_PROJECT": "notes", "WANDB_NAME": "first", "WANDB_LOG_MODEL": "end", "WANDB_MODE": "offline"},
        ),
        (
            MlflowCallback(experiment_name="notes", tracking_uri="http://tracker", log_artifacts=True),
            {
                "MLFLOW_EXPERIMENT_NAME": "notes",
                "MLFLOW_TRACKING_URI": "http://tracker",
                "HF_MLFLOW_LOG_ARTIFACTS": "True",
                "MLFLOW_RUN_NAME": "from the environment",
            },
        ),
        (TensorBoardCallback(logging_dir="board"), {"TENSORBOARD_LOGGING_DIR": "board"}),
    ],
    ids=["wandb", "mlflow", "tensorboard"],
)
def test_arguments_take_precedence_over_the_environment(
    callback: Any, expected: dict[str, str], trainer: Any, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WANDB_MODE": "offline", "MLFLOW_RUN_NAME": "from the environment"}.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME", "TENSORBOARD_LOGGING_DIR"):
        monkeypatch.setenv(name, "other")
    play("import os; [print(name, value, sep='=') for name, value in os.environ.items()]")
    callback.on_train_begin(trainer)
    callback.on_train_end(trainer)
    lines = log_of(trainer, callback.tracker).splitlines()
    assert {f"{name}={value}" for name, value in expected.items()} <= set(lines)


@pytest.mark.parametrize(
    ("callback", "variable", "value"),
    [
        (WandbCallback, "WANDB_DISABLED", "true"),
        (WandbCallback, "WANDB_MODE", "disabled"),
        (MlflowCallback, "DISABLE_MLFLOW_INTEGRATION", "TRUE"),
    ],
)
def test_environment_switches_a_tracker_off(
    callback: Any, variable: str, value: str, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    switched_off = callback()
    switched_off.on_train_begin(trainer)
    switched_off.on_step(trainer, 1)
    switched_off.on_train_end(trainer)
    assert not Path(trainer.config.output_dir).exists()


def test_missing_package_is_refused_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"mlflow is not installed: run `pip install 'tensafe\[mlflow\]'`"):
        MlflowCallback()


def test_guide_and_hugging_face_names_are_the_same_classes() -> None:
    assert sorted(tensorguard.integrations.__all__) == list(tensorguard.integrations.__all__)
    assert tensorguard.integrations.TenSafeWandbCallback is WandbCallback
    assert tensorguard.integrations.TenSafeMLflowCallback is tensorguard.integrations.MLflowCallback is MlflowCallback


@pytest.fixture
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """A server that accepts connections and never answers: its address, and whether a client has connected."""
    connected, kept = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    kept.append(server.accept())
                except OSError:
                    return
                connected.set()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", connected
        server.shutdown(socket.SHUT_RDWR)
    for connection, _ in kept:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_server_that_never_answers_delays_neither_a_step_nor_the_end(
    tracker: str,
    trainer: Any,
    silent_server: tuple[str, threading.Event],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the real packages, which retry for minutes."""
    address, connected = silent_server
    monkeypatch.setenv("WANDB_BASE_URL", address)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_DIR", str(trainer.config.output_dir))
    run = RecordedRun(Path(trainer.config.output_dir))
    callback: Any = {
        "wandb": WandbCallback(wait_seconds=1),
        "mlflow": MlflowCallback(tracking_uri=address, wait_seconds=1),
    }[tracker]
    with ExitStack() as lock:
        lock.enter_context(lock_run_folder(run.directory))
        callback.on_train_begin(trainer)
        session = process_of(callback)
        assert connected.wait(300), log_of(trainer, tracker)
        run.start(1, 1, 0)
        longest = 0.0
        for step in range(1, 21):
            run.take_steps(step, step)
            start = time.monotonic()
            callback.on_step(trainer, step)
            longest = max(longest, time.monotonic() - start)
        run.end(Reason.COMPLETED)
    assert longest < LONGEST_STEP_SECONDS
    start = time.monotonic()
    callback.on_train_end(trainer)
    assert time.monotonic() - start < 10
    assert "did not receive everything within 1 seconds" in caplog.text
    wait_until(lambda: not _in_session(session), failure_message=lambda: f"{_in_session(session)} are still running")


def _in_session(session: int) -> list[str]:
    """The processes of a session: the export, and what its tracker's library has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(path.parent.name)
    return found
