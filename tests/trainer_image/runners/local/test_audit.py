"""What the local driver adds to the audit log: refusals, and ends that no worker could log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.runners.preflight import RunRefused
from tensorguard.verification.audit_logs import verify_audit_log
from tensorguard.verification.ledgers import read_file_ledger
from tests.support.trainer.local_runs import Folder, lost, stopped

AUDITED = "spec.observability.auditLog=Enabled"


def entries(folder: Folder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.output / AUDIT_LOG).read_text().splitlines()]


def check(folder: Folder) -> None:
    verify_audit_log(str(folder.output), lambda uid: read_file_ledger(folder.output))


@pytest.mark.slow
def test_run_and_its_resume_are_one_log(folder: Folder) -> None:
    folder.stop_at = 3
    folder.run(AUDITED)
    folder.stop_at = None
    folder.run(AUDITED, resume=True)
    events = [entry["event"] for entry in entries(folder) if entry["event"] not in ("Charge", "Publication")]
    assert events == [
        "Open",
        "Start",
        "Dataset",
        "Model",
        "KeyAgreement",
        "Interruption",
        "Resume",
        "KeyAgreement",
        "End",
    ]
    assert (folder.output / AUDIT_LOG).stat().st_mode & 0o077 == 0
    check(folder)


@pytest.mark.slow
def test_refused_run_is_logged_in_the_log_of_the_earlier_one(folder: Folder) -> None:
    folder.run(AUDITED)
    with pytest.raises(RunRefused):
        folder.run(AUDITED)
    last = entries(folder)[-1]
    assert (last["event"], last["process"], last["reason"]) == ("Refusal", "driver", "InvalidManifest")
    assert "has the ledger of a run that was charged 4 steps" in last["message"]
    check(folder)


def test_resume_without_the_log_is_refused_and_logged(folder: Folder) -> None:
    folder.stop_at = 3
    folder.run(AUDITED)
    with pytest.raises(RunRefused, match=r"keeps an audit log .*: pass --audit-log, or write Enabled"):
        folder.run(resume=True)
    assert entries(folder)[-1]["event"] == "Refusal"
    check(folder)


@pytest.mark.slow
def test_resume_with_a_log_completes_it(folder: Folder) -> None:
    stopped(folder)
    assert not (folder.output / AUDIT_LOG).exists()
    folder.run(AUDITED, resume=True)
    assert [entry["event"] for entry in entries(folder)][:2] == ["Open", "Start"]
    assert entries(folder)[1]["recovered"]
    check(folder)


def test_workers_that_never_answer_are_an_interruption(folder: Folder) -> None:
    folder.fails = lost()
    folder.run(AUDITED)
    (last,) = entries(folder)
    assert (last["event"], last["process"], last["reason"], last["attempt"]) == (
        "Interruption",
        "driver",
        "WorkerLost",
        1,
    )


def test_new_run_in_the_folder_of_one_that_was_never_charged_starts_a_new_log(folder: Folder) -> None:
    folder.fails = lost()
    folder.run(AUDITED)
    folder.fails = None
    folder.run(AUDITED)
    assert entries(folder)[0]["event"] == "Open"
    check(folder)
