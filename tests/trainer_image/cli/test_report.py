"""The picture of a run has the charged steps and the restarts of its ledger, also those that the run log lacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tensorguard.cli import report
from tensorguard.ledger.file import FileLedger
from tensorguard.training.run_log import Evaluated, RunLog, Started, Stepped

Draw = Callable[[], report.History]


@pytest.fixture
def draw(write_manifest: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draw:
    """Writes the picture of the run in `out`, and returns the history that was drawn."""
    job, plan = resolve_job(load_manifest(Path(write_manifest(cluster__workers=1))))
    drawn: list[report.History] = []
    monkeypatch.setattr(report, "draw_report", lambda history, *others: drawn.append(history))

    def write() -> report.History:
        assert report.write_report(tmp_path / "out", plan, job) is not None
        return drawn[-1]

    return write


@pytest.fixture
def killed_run(write_manifest: Callable[..., str], write_ledger: Any, tmp_path: Path) -> Path:
    """The folder of a run that was killed after step 9 was charged, and before it was revealed."""
    out = write_ledger(write_manifest(cluster__workers=1), tmp_path / "out", charged=9).parent
    log = RunLog(out / "events.jsonl")
    log.write(Started(time.time(), 1, 1, 0))
    for step in range(1, 9):
        log.write(Stepped(time.time(), step, step))
    log.write(Evaluated(time.time(), 8, 0.5))
    log.close()
    return out


def test_step_that_was_charged_and_not_taken_is_in_the_picture(killed_run: Path, draw: Draw) -> None:
    history = draw()
    assert history.charged == 9
    assert [position for position, _ in history.evaluations] == [8]


def test_restart_is_drawn_after_all_charges_before_it(killed_run: Path, draw: Draw) -> None:
    ledger = FileLedger(killed_run)
    ledger.acquire(attempt=1, from_step=8)
    ledger.charge(2)
    ledger.close()
    ledger.acquire(attempt=2, from_step=8)
    ledger.close()
    history = draw()
    assert history.restarts == [(9, "restarted"), (11, "attempt 2")]
    assert history.charged == 11


def test_run_without_a_charge_has_no_picture(
    write_manifest: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, plan = resolve_job(load_manifest(Path(write_manifest(cluster__workers=1))))
    assert report.write_report(tmp_path, plan, job) is None
    assert not capsys.readouterr().err


def test_picture_is_left_out_if_the_ledger_is_damaged(
    killed_run: Path, write_manifest: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    job, plan = resolve_job(load_manifest(Path(write_manifest(cluster__workers=1))))
    path = killed_run / "ledger.jsonl"
    path.write_text(path.read_text().replace('"steps":9', '"steps":1'))
    assert report.write_report(killed_run, plan, job) is None
    assert "no picture of the run" in capsys.readouterr().err
