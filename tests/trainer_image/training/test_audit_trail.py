"""The audit log of a whole job: keys, evaluations, refusals and interruptions, and no private value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensorguard.audit_log.entries import FIELDS, Event
from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.ledger.file import NAME, FileLedger
from tensorguard.training.audit_trail import event_of
from tensorguard.training.checkpointing import Checkpointer
from tensorguard.training.private_metrics import PrivateMetrics
from tensorguard.training.stop_signal import StopSignal
from tensorguard.verification.audit_logs import verify_audit_log
from tensorguard.verification.ledgers import read_file_ledger
from tests.support.trainer.fault_injection import Kill
from tests.support.trainer.rank_harness import WORDS, Job, records

AUDITED = ("spec.observability.auditLog=Enabled", "spec.training.steps=4", "spec.checkpoint.everySteps=2")
ALONE = (*AUDITED, "spec.cluster.workers=1")


def entries(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.directory / AUDIT_LOG).read_text().splitlines()]


def check(job: Job) -> None:
    report = verify_audit_log(str(job.directory), lambda uid: read_file_ledger(job.directory))
    assert report.steps_charged == job.ledger().steps_charged


@pytest.mark.slow
def test_workers_log_the_fingerprints_of_their_keys(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *AUDITED)
    assert job.run() == [0, 0], job.errors()
    (agreement,) = [entry for entry in entries(job) if entry["event"] == "KeyAgreement"]
    assert (agreement["workers"], agreement["protocol"]) == (2, "PairwiseMasks")
    assert len(set(agreement["publicKeys"])) == 2
    assert all(key.startswith("sha256:") and len(key) == 71 for key in agreement["publicKeys"])
    check(job)


@pytest.mark.slow
def test_new_incarnation_agrees_on_new_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.make(tmp_path / "run", *ALONE)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "save", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("no route")))
        with pytest.raises(ConnectionError):
            job.train_alone()
    job.train_alone(restart=True)
    found = entries(job)
    assert [entry["event"] for entry in found if "ledgerLength" not in entry] == [
        "KeyAgreement",
        "Interruption",
        "KeyAgreement",
    ]
    interruption = next(entry for entry in found if entry["event"] == "Interruption")
    assert interruption["reason"] == "InternalError"
    assert interruption["message"].startswith("ConnectionError (") and "no route" not in interruption["message"]
    keys = [entry["publicKeys"] for entry in found if entry["event"] == "KeyAgreement"]
    assert keys[0] != keys[1]
    check(job)


@pytest.mark.slow
def test_stop_on_request_is_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.make(tmp_path / "run", *ALONE)
    monkeypatch.setattr(StopSignal, "requested", property(lambda self: FileLedger(job.directory).read().length > 5))
    job.train_alone()
    assert [entry["event"] for entry in entries(job)][-3:] == ["Charge", "Publication", "Interruption"]
    assert entries(job)[-1]["reason"] == "Interrupted"
    check(job)


@pytest.mark.slow
def test_refused_resume_is_logged_with_its_reason(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *ALONE)
    job.train_alone()
    job.job_uid = "tiny-uid"
    job.digest = "hmac-sha256:other"
    ledger = (job.directory / NAME).read_bytes()
    job.train_alone()
    last = entries(job)[-1]
    assert (last["event"], last["reason"], last["attempt"]) == ("Refusal", "ConfigurationChanged", 2)
    assert last["message"].startswith("the data set is not the one that this ledger was opened for")
    assert (job.directory / NAME).read_bytes() != ledger, "it had acquired the ledger"
    check(job)


@pytest.mark.slow
def test_exhausted_budget_is_a_refusal_where_the_job_fails(tmp_path: Path) -> None:
    job = Job.make(
        tmp_path / "run",
        *ALONE,
        "spec.privacy.noiseMultiplier=0.9",
        "spec.privacy.targetEpsilon=9",
        "spec.privacy.onBudgetExhausted=Fail",
        "spec.training.steps=400",
        "spec.checkpoint.everySteps=400",
    )
    job.train_alone()
    last = entries(job)[-1]
    assert (last["event"], last["reason"]) == ("Refusal", "PrivacyBudgetExceeded")
    check(job)


@pytest.mark.slow
def test_evaluation_is_logged_without_its_result(tmp_path: Path) -> None:
    job = Job.make(
        tmp_path / "run",
        *ALONE,
        "spec.evaluation.uri=s3://clinic/public",
        "spec.evaluation.visibility=Public",
        "spec.evaluation.everySteps=2",
    )
    job.train_alone()
    found = [entry for entry in entries(job) if entry["event"] == "Evaluation"]
    assert [(entry["step"], entry["visibility"]) for entry in found] == [(2, "Public"), (4, "Public")]
    losses = [f"{record.loss}" for record in job.records() if record.kind == "evaluated"]
    assert losses and not any(loss[:6] in (job.directory / AUDIT_LOG).read_text() for loss in losses)


@pytest.mark.slow
def test_no_private_value_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records, keys and exact figures of private data: all of them exist in this job, none of them in its log."""
    drawn: list[str] = []
    record = PrivateMetrics.record_step

    def remember(self: PrivateMetrics, step: int, clipper: Any, losses: Any) -> None:
        record(self, step, clipper, losses)
        drawn.append(f"{float(sum(map(float, losses))):.6f}"[:6])

    monkeypatch.setattr(PrivateMetrics, "record_step", remember)
    rows = [{"text": "w1 w2 canary-in-a-record", "label": 1}, *records(238), {"text": "w3", "label": 0}]
    job = Job.make(tmp_path / "run", *ALONE, "spec.observability.privateMetrics=Internal", rows=rows)
    job.train_alone()
    text = (job.directory / AUDIT_LOG).read_text()
    secret = job.private.key_file("tiny-uid").read_bytes()
    for private in ("canary", *WORDS[10:], secret.hex(), "240", *drawn):
        assert f'"{private}"' not in text and f":{private}," not in text, private
    assert "canary" not in text and secret.hex() not in text
    for entry in entries(job):
        assert set(entry) - {"number", "time", "event", "job", "jobUID", "actor", "process", "previous", "hash"} <= (
            FIELDS[Event(entry["event"])] | {"recovered"}
        )


@pytest.mark.slow
def test_job_without_an_audit_log_writes_none(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", "spec.cluster.workers=1", "spec.training.steps=1")
    job.train_alone()
    assert not (job.directory / AUDIT_LOG).exists()
    assert "auditLogHead" not in json.loads((job.directory / "checkpoints/final/statement.json").read_text())["hashes"]


@pytest.mark.slow
def test_unwritable_log_stops_the_training(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *ALONE)
    (job.directory / AUDIT_LOG).mkdir()
    job.train_alone()
    assert job.ended().reason == "CheckpointUnwritable"
    assert job.ledger().steps_charged == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "moment"), [("charge", "before"), ("charge", "after"), ("publish", "after"), ("outcome", "after")]
)
def test_kill_at_a_write_of_the_ledger_leaves_the_log_complete(tmp_path: Path, point: str, moment: Any) -> None:
    job = Job.make(tmp_path / "run", *AUDITED)
    assert job.run(Kill(point, moment, all_ranks=True)) != [0, 0]
    assert job.run() == [0, 0], job.errors()
    check(job)
    recovered = [entry["event"] for entry in entries(job) if "recovered" in entry]
    expected = {"charge": ["Charge"], "publish": ["Publication"], "outcome": ["End"]}[point]
    assert recovered == (expected if moment == "after" else [])


def test_reasons_that_a_resume_may_fix_are_interruptions() -> None:
    assert event_of(Reason.WORKER_LOST) is Event.INTERRUPTION
    assert event_of(Reason.MODEL_UNAVAILABLE) is Event.REFUSAL
