"""The folder that an export writes, read by TensorBoard itself."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tensafe_api.reasons import Reason
from tensorguard.cli.main import main
from tests.support.trainer.recorded_run import RecordedRun, crashed_and_finished


@pytest.fixture(autouse=True)
def no_logging_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def series(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 4)) for event in read(folder).Scalars(tag)]


@pytest.mark.slow
def test_tensorboard_shows_the_figures_and_the_statement(tmp_path: Path) -> None:
    run = crashed_and_finished(tmp_path / "run")
    assert main(["export", str(run.directory), "--to", "tensorboard"]) == 0
    folder = run.directory / "tensorboard"
    assert series(folder, "eval/loss") == [(5, 0.69), (10, 0.6), (17, 0.5), (22, 0.4)]
    assert [step for step, _ in series(folder, "train/global_step")] == list(range(1, 23))
    accumulator = read(folder)
    assert set(accumulator.Tags()["scalars"]) == {
        *("train/global_step", "train/epoch", "train/learning_rate"),
        *("dp/epsilon", "dp/epsilon_spent", "dp/steps_charged", "dp/steps_claimed"),
        *("eval/loss", "eval/accuracy"),
    }
    (statement,) = accumulator.Tensors("statement/text_summary")
    assert b"Privacy statement" in statement.tensor_proto.string_val[0]
    (config,) = accumulator.Tensors("config/text_summary")
    assert b'"training.steps": 20' in config.tensor_proto.string_val[0]


def test_resumed_run_continues_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    run = RecordedRun(tmp_path / "run")
    run.start(1, 1, 0)
    run.take_steps(1, 8)
    run.save(8)
    run.end(Reason.INTERRUPTED)
    main(["export", str(run.directory), "--to", "tensorboard"])
    run.start(2, 1, 8)
    run.take_steps(9, 20)
    run.end(Reason.COMPLETED, attempt=2)
    main(["export", str(run.directory), "--to", "tensorboard"])
    assert [step for step, _ in series(tmp_path / "board", "train/global_step")] == list(range(1, 21))
    assert not (run.directory / "tensorboard").exists()


def test_files_hold_nothing_private_and_no_host(tmp_path: Path) -> None:
    run = crashed_and_finished(tmp_path / "run")
    main(["export", str(run.directory), "--to", "tensorboard"])
    (file,) = (run.directory / "tensorboard").iterdir()
    content = file.name.encode() + file.read_bytes()
    assert b"SECRET" not in content
    assert socket.gethostname().encode() not in content.replace(b"event", b"")
