"""`tensafe export` as a user calls it: of a run's folder, of a job from a cluster, and with mistakes."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tensafe_api.manifest.text import dump_manifest
from tensafe_api.reasons import Reason
from tensorguard.cli.main import main
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.local.status import status_from_run
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import Ended, RunLogReader
from tests.support.fakes.clock import Clock
from tests.support.trainer.recorded_run import RecordedRun, crashed_and_finished


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is the test's folder, and no variable of a tracker is set."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("WANDB", "TENSORBOARD")) or "MLFLOW" in name]:
        monkeypatch.delenv(name)


def job_with_status(run: RecordedRun) -> str:
    """What `kubectl get tsj triage -o yaml` prints."""
    records = list(RunLogReader(run.directory / RUN_LOG).read())
    ended = next(record for record in reversed(records) if isinstance(record, Ended))
    status = status_from_run(run.job, run.plan, FileLedger(run.directory).read(), records, ended)
    return dump_manifest(run.job.model_copy(update={"status": status}))


def scalars(folder: str, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(folder)
    accumulator.Reload()
    return [(event.step, round(event.value, 4)) for event in accumulator.Scalars(tag)]


@pytest.mark.slow
def test_job_of_a_cluster_is_exported_from_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One evaluation for each step of the plan, and the privacy figures that the operator computed."""
    run = crashed_and_finished(tmp_path / "run")
    text = job_with_status(run)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["export", "-", "--to", "tensorboard"]) == 0
    folder = "tensafe-runs/triage/tensorboard"
    assert scalars(folder, "eval/loss") == [(5, 0.69), (10, 0.6), (15, 0.5), (20, 0.4)]
    assert scalars(folder, "dp/steps_charged") == [(20, 23)]
    ((_, spent),) = scalars(folder, "dp/epsilon_spent")
    assert spent >= run.plan.epsilon(23)
    assert "SECRET" not in "".join(map(str, Path(folder).iterdir()))
    assert f"exported to tensorboard: {tmp_path}/{folder}" in capsys.readouterr().err


@pytest.mark.slow
def test_later_export_of_a_job_sends_only_new_evaluations(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run")
    run.start(1, 1, 0)
    run.take_steps(1, 5)
    run.evaluate(5, 0.69, 0.5)
    run.end(Reason.INTERRUPTED)
    Path("job.yaml").write_text(job_with_status(run))
    assert main(["export", "job.yaml", "--to", "tensorboard", "--output-dir", "kept"]) == 0
    run.start(2, 1, 5)
    run.take_steps(6, 10)
    run.evaluate(10, 0.6, 0.6)
    run.end(Reason.INTERRUPTED, attempt=2)
    Path("job.yaml").write_text(job_with_status(run))
    assert main(["export", "job.yaml", "--to", "tensorboard", "--output-dir", "kept"]) == 0
    assert scalars("kept/tensorboard", "eval/loss") == [(5, 0.69), (10, 0.6)]


@pytest.mark.slow
def test_follow_waits_for_a_run_that_is_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            crashed_and_finished(tmp_path / "run")

    monkeypatch.setattr("tensorguard.cli.export.time.sleep", sleep)
    assert main(["export", "run", "--to", "tensorboard", "--follow"]) == 0
    assert len(waits) >= 3
    assert scalars("run/tensorboard", "eval/loss")


def test_follow_of_no_run_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    monkeypatch.setattr("tensorguard.cli.export.time", clock)
    assert main(["export", "-", "--to", "tensorboard", "--follow"]) == 2
    assert "--follow needs the folder of a run" in capsys.readouterr().err and clock.now == 0
    assert main(["export", "none", "--to", "tensorboard", "--follow"]) == 2
    assert "there is no none: pass the --output-dir" in capsys.readouterr().err
    assert 60 <= clock.now < 61


def test_mistakes_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = crashed_and_finished(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    mistakes = {
        ("empty", "--to", "tensorboard"): "empty has no run: pass the --output-dir of `tensafe run`",
        ("run/job.yaml", "--to", "tensorboard"): "has no status: pass the output of `kubectl get tsj NAME -o yaml`",
        ("run/job.yaml", "--to", "tensorboard", "--follow"): "--follow needs the folder of a run",
        ("run", "--to", "tensorboard", "--output-dir", "x"): "--output-dir is for a job",
        ("missing.yaml", "--to", "tensorboard"): "there is no missing.yaml: pass the --output-dir of `tensafe run`, or",
    }
    for arguments, sentence in mistakes.items():
        assert main(["export", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert not (run.directory / "tensorboard").exists()


def test_edited_ledger_fails_the_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = crashed_and_finished(tmp_path / "run")
    (run.directory / "ledger.jsonl").unlink()
    assert main(["export", "run", "--to", "tensorboard"]) == 1
    assert "there is no ledger" in capsys.readouterr().err


def test_tracker_that_is_switched_off_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = crashed_and_finished(tmp_path / "run")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert main(["export", "run", "--to", "wandb"]) == 0
    assert "nothing is sent to wandb, because WANDB_MODE=disabled" in capsys.readouterr().err
    assert not (run.directory / "trackers").exists()


def test_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crashed_and_finished(tmp_path / "run")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["export", "run", "--to", "mlflow"]) == 2
    assert "run `pip install 'tensafe[mlflow]'`" in capsys.readouterr().err
