"""Runs of the local driver without Ray: a folder in which jobs run, and what such a run returned or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.reasons import Reason
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.local import driver
from tensorguard.runners.local.driver import RunResult
from tensorguard.runners.preflight import RunRefused
from tensorguard.runners.worker_group import RankFailed, WorkersFailed
from tensorguard.training.run_log import Listener, LogRecord
from tensorguard.training.stop_signal import StopSignal
from tests.support.trainer.rank_harness import MANIFEST, make_model, records


class Folder:
    """A folder in which jobs run.

    Attributes:
        stop_at: the step (from 0) at which a stop is requested; None for none.
        fails: the exception of the workers; None for none.
        identity: the file that decrypts checkpoints; None for none.
        listener: called with each log record; by default it keeps them in `records`.
        records: the log records that the listener received.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.output = base / "out"
        self.private = base / "out.private"
        self.stop_at: int | None = None
        self.fails: Exception | None = None
        self.identity: Path | None = None
        self.rows = records(240)
        self.records: list[LogRecord] = []
        self.listener: Listener = self.records.append
        make_model(base / "model")

    def run(self, *overrides: str, resume: bool = False, output: Path | None = None) -> RunResult:
        model = json.dumps(str(self.base / "model"))
        text = MANIFEST.replace("MODEL", model).replace("CHECKPOINTS", "checkpoints")
        small = ("spec.cluster.workers=1", "spec.training.steps=4", "spec.checkpoint.everySteps=2")
        return driver.run(
            load_manifest(text, (*small, *overrides)),
            output_dir=output or self.output,
            base_dir=self.base,
            resume=resume,
            listener=self.listener,
            stop=StopSignal(),
            identity=self.identity,
        )

    def ledger(self) -> FileLedger:
        return FileLedger(self.output)


def stopped(folder: Folder) -> RunResult:
    """A run that was stopped in its fourth step."""
    folder.stop_at = 3
    result = folder.run()
    folder.stop_at = None
    assert result.exit_code == 130
    return result


def lost() -> WorkersFailed:
    """How the workers fail where one is killed again and again."""
    return WorkersFailed(5, RankFailed(Reason.WORKER_LOST, "worker 0 was killed"))


def reason(result: RunResult) -> tuple[str | None, str | None]:
    """Reason and message of the last attempt."""
    assert result.job.status is not None
    attempt = result.job.status.attempts[-1]
    return attempt.reason, attempt.message


def refusal(folder: Folder, *overrides: str, resume: bool = False, output: Path | None = None) -> RunRefused:
    """The one-line error of a run that is refused, which changes no file of the folder."""
    before = {path: path.read_bytes() for path in folder.output.glob("*") if path.is_file()}
    with pytest.raises(RunRefused) as caught:
        folder.run(*overrides, resume=resume, output=output)
    after = {path: path.read_bytes() for path in folder.output.glob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert "\n" not in str(caught.value)
    return caught.value
