"""What `tensafe run` does with the run that is in its folder: resume it, start over, or refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.runners import run_folder
from tensorguard.runners.local import driver
from tensorguard.runners.local.driver import RunResult
from tensorguard.training.config import RUN_LOG, WorkerConfig
from tensorguard.training.stop_signal import StopSignal
from tests.support.trainer.local_runs import Folder, lost, reason, refusal, stopped
from tests.support.trainer.rank_harness import records


@pytest.mark.slow
def test_run_is_resumed_with_the_manifest_in_its_folder(folder: Folder) -> None:
    stopped(folder)
    job = load_manifest(folder.output / "job.yaml")
    resolved, plan = resolve_job(job)
    assert resolved == job
    assert plan.mechanism == folder.ledger().read().spec.mechanism
    result = driver.run(
        job,
        output_dir=folder.output,
        base_dir=Path("/"),
        resume=True,
        listener=folder.records.append,
        stop=StopSignal(),
    )
    assert result.exit_code == 0
    assert result.job.status is not None
    assert [attempt.reason for attempt in result.job.status.attempts] == ["Interrupted", "Completed"]
    assert result.job.metadata.uid == folder.ledger().read().spec.job_uid


def test_charged_folder_is_refused_without_resume(folder: Folder) -> None:
    stopped(folder)
    refused = refusal(folder)
    assert "--resume" in str(refused)
    assert "charged 4 steps" in str(refused)


def test_finished_run_cannot_be_resumed(folder: Folder) -> None:
    folder.run()
    assert "is over (Completed)" in str(refusal(folder, resume=True))


@pytest.mark.parametrize("name", ["job.yaml", RUN_LOG])
def test_files_that_no_run_has_written_are_not_replaced(folder: Folder, name: str) -> None:
    """A user's manifest, or a data set that has the name of the log."""
    folder.output.mkdir()
    (folder.output / name).write_text("metadata: {name: mine}\n")
    assert f"{name} would be replaced, and no run has written it; choose another --output-dir" in str(refusal(folder))


@pytest.mark.slow
def test_manifest_stays_if_the_disk_is_full_at_a_resume(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(folder)
    manifest = (folder.output / "job.yaml").read_text()

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(run_folder, "write_owner_only", fail)
        folder.run(resume=True)
    assert (folder.output / "job.yaml").read_text() == manifest
    assert folder.run(resume=True).exit_code == 0


@pytest.mark.slow
def test_run_that_failed_for_its_budget_is_over(folder: Folder) -> None:
    limits = ("spec.privacy.noiseMultiplier=0.9", "spec.privacy.targetEpsilon=2", "spec.training.steps=9")
    result = folder.run(*limits, "spec.privacy.onBudgetExhausted=Fail")
    assert reason(result)[0] == "PrivacyBudgetExceeded"
    assert not folder.private.exists()
    refused = str(refusal(folder, *limits, "spec.privacy.onBudgetExhausted=Fail", resume=True))
    assert "is over (PrivacyBudgetExceeded)" in refused


def test_folder_without_a_run_cannot_be_resumed(folder: Folder) -> None:
    assert "leave out --resume" in str(refusal(folder, resume=True))


@pytest.mark.slow
def test_missing_ledger_is_not_taken_for_a_new_run(folder: Folder) -> None:
    stopped(folder)
    (folder.output / LEDGER).unlink()
    for resume in (False, True):
        assert "ledger.jsonl is missing" in str(refusal(folder, resume=resume))
    (folder.output / RUN_LOG).unlink()
    for resume in (False, True):
        assert "another run's checkpoint" in str(refusal(folder, resume=resume))


@pytest.mark.slow
@pytest.mark.parametrize("resume", [False, True])
def test_folder_with_an_uncharged_ledger_can_be_used_again(folder: Folder, resume: bool) -> None:
    """The end of the uncharged attempt is not taken for the end of this one."""
    folder.fails = lost()
    failed = folder.run()
    assert failed.exit_code == 1
    assert reason(failed)[0] == "WorkerLost"
    assert folder.ledger().read().steps_charged == 0
    folder.fails = None
    result = folder.run(resume=resume)
    assert (result.exit_code, reason(result)[0]) == (0, "Completed")


@pytest.mark.slow
@pytest.mark.parametrize("resume", [False, True])
def test_run_that_ended_before_its_workers_started_can_be_started_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    def unreadable(*_: Any) -> WorkerConfig:
        raise OSError("the data is not there yet")

    with monkeypatch.context() as patch:
        patch.setattr(driver._Run, "_prepare", unreadable)
        assert folder.run().exit_code == 1
    assert not (folder.output / LEDGER).exists()
    assert folder.run(resume=resume).exit_code == 0


CHANGES = {
    "spec.privacy.noiseMultiplier=7": "mechanism.noiseMultiplier",
    "spec.privacy.targetEpsilon=19": "targetEpsilon",
    "spec.privacy.targetDelta=1e-5": "delta",
    "spec.training.expectedBatchSize=10": "mechanism.sampleRate",
    "spec.dataset.unit.atLeast=220": "unitAtLeast",
    "spec.training.steps=6": "plannedSteps",
    "spec.privacy.maxGradNorm=2": "mechanism.clip",
    "spec.privacy.reserveSteps=50": "reserveSteps",
    "spec.dataset.unit={kind: User, column: label, atLeast: 200}": "mechanism.unit",
    "spec.dataset.lineage=another": "lineage",
    "metadata.name=other": "jobName",
    "spec.observability.privateMetrics=Internal": "privateMetrics",
    "spec.aggregation.verify=Disabled": "verify",
    "spec.evaluation={uri: e.jsonl, visibility: Private}": "evaluation",
}


@pytest.mark.slow
def test_counted_run_claims_zero_out_adjacency_wherever_it_claims_and_after_a_resume(folder: Folder) -> None:
    counted = "metadata.annotations={'tensafe.io/unit-at-least': '200'}"
    folder.stop_at = 3
    folder.run(counted)
    folder.stop_at = None
    assert "mechanism.adjacency was ZeroOut, is AddOrRemoveOne" in str(refusal(folder, resume=True))
    result = folder.run(counted, resume=True)
    assert result.job.status is not None and result.job.status.final_model is not None
    assert result.job.status.privacy.adjacency == folder.ledger().read().spec.mechanism.adjacency == "ZeroOut"
    statement = json.loads(Path(result.job.status.final_model.statement_uri.removeprefix("file://")).read_text())
    assert statement["claim"]["adjacency"] == "ZeroOut"
    assert any("under zero-out adjacency" in remark for remark in statement["remarks"])


@pytest.mark.slow
def test_resume_with_another_privacy_value_names_the_field(folder: Folder) -> None:
    stopped(folder)
    for change, named in CHANGES.items():
        refused = str(refusal(folder, change, resume=True))
        assert f"{named} was " in refused, change
        assert "job.yaml" in refused
    assert folder.run(resume=True).exit_code == 0


@pytest.mark.slow
def test_resume_on_other_data_is_refused(folder: Folder) -> None:
    stopped(folder)
    folder.rows = records(240, seed=1)
    result = folder.run(resume=True)
    assert (result.exit_code, reason(result)[0]) == (1, "ConfigurationChanged")
    assert folder.ledger().read().steps_charged == 4


@pytest.mark.slow
def test_resume_may_change_fields_outside_the_privacy_claim(folder: Folder) -> None:
    stopped(folder)
    assert folder.run("spec.training.learningRate=1e-3", "spec.checkpoint.keep=1", resume=True).exit_code == 0


@pytest.mark.slow
def test_an_edited_ledger_is_refused(folder: Folder) -> None:
    stopped(folder)
    path = folder.output / LEDGER
    path.write_text(path.read_text().replace('"steps":1', '"steps":0', 1))
    assert "was edited: entry" in str(refusal(folder, resume=True))
    assert "was edited: entry" in str(refusal(folder))


def test_missing_job_key_is_refused(folder: Folder) -> None:
    stopped(folder)
    next(folder.private.glob("job-*.key")).unlink()
    assert ".key is missing; restore it" in str(refusal(folder, resume=True))


def test_missing_run_log_is_refused(folder: Folder) -> None:
    stopped(folder)
    (folder.output / RUN_LOG).unlink()
    assert "events.jsonl is missing, and the ledger beside it cannot be checked without it" in str(
        refusal(folder, resume=True)
    )


@pytest.mark.slow
def test_ledger_that_was_cut_during_the_run_is_not_trusted_at_its_end(folder: Folder) -> None:
    """The status shows no figure that could be too small."""
    stopped(folder)
    path = folder.output / "ledger.jsonl"

    lines = path.read_bytes().splitlines(keepends=True)
    run = driver._Run.result

    def result(one: Any) -> RunResult:
        path.write_bytes(b"".join(lines[:3]))
        return run(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver._Run, "result", result)
        cut = folder.run(resume=True)
    assert reason(cut)[0] == "LedgerCorrupt"
    assert cut.exit_code == 1
    assert cut.job.status is not None
    assert cut.job.status.privacy.epsilon_spent is None
