"""A ledger with an audit log: each accepted write is logged once, and none that was refused."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tensorguard.audit_log.audited_ledger import AuditedLedger
from tensorguard.audit_log.entries import NO_HASH, Event
from tensorguard.audit_log.ledger_events import Position, missing_entries, position_after
from tensorguard.audit_log.line_files import LineFile
from tensorguard.audit_log.log import AuditLog, AuditLogCorrupt, this_actor
from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.ledger.backends import POD_UID
from tensorguard.ledger.contract import Fenced, LedgerCorrupt, PublishedCheckpoint
from tensorguard.ledger.file import NAME, FileLedger
from tensorguard.verification.audit_logs import verify_audit_log
from tensorguard.verification.ledgers import read_file_ledger

Open = Callable[[], AuditedLedger]


def entries(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / AUDIT_LOG).read_text().splitlines()]


def events(directory: Path) -> list[str]:
    return [entry["event"] for entry in entries(directory)]


def published(step: int, *, final: bool = False) -> PublishedCheckpoint:
    return PublishedCheckpoint(step, 1, f"file:///models/step-{step}", "sha256:a", "sha256:b", final, "sha256:k")


def verified(directory: Path) -> int:
    return verify_audit_log(str(directory), lambda uid: read_file_ledger(directory)).steps_charged


def test_each_write_is_logged_with_who_and_when(tmp_path: Path, open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.acquire(attempt=1, from_step=0)
    ledger.record_dataset("hmac-sha256:d")
    ledger.record_dataset("hmac-sha256:d")  # changes nothing
    ledger.record_model("sha256:w", None)
    ledger.charge(3)
    ledger.record_checkpoint(published(3))
    ledger.record_outcome("Suspended")
    ledger.close()
    ledger = open_ledger()
    ledger.acquire(attempt=2, from_step=3)
    ledger.charge(2)
    state = ledger.record_outcome("Completed")
    logged = entries(tmp_path)
    assert events(tmp_path) == [
        *("Open", "Start", "Dataset", "Model", "Charge", "Publication", "Interruption"),
        *("Resume", "Charge", "End"),
    ]
    assert {entry["actor"] for entry in logged} == {this_actor()}
    assert {(entry["job"], entry["jobUID"]) for entry in logged} == {("claims-triage", "3f2a91c0")}
    assert [entry["stepsCharged"] for entry in logged if entry["event"] == "Charge"] == [3, 5]
    assert (logged[-1]["ledgerHead"], logged[-1]["ledgerLength"]) == (state.head, state.length)
    assert logged[5]["signer"] == "sha256:k"
    assert logged[7]["attempt"] == 2 and logged[7]["step"] == 3
    assert not any("recovered" in entry for entry in logged)
    assert verified(tmp_path) == 5


def test_actor_is_the_pod_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POD_UID, "7d1f")
    assert this_actor() == f"pod/{os.uname().nodename}/7d1f"
    monkeypatch.delenv(POD_UID)
    monkeypatch.setenv("LOGNAME", "ada")
    assert this_actor() == f"ada@{os.uname().nodename}/{os.getpid()}"


def test_charge_that_the_ledger_refuses_is_not_logged(tmp_path: Path, open_ledger: Open) -> None:
    first = open_ledger()
    first.acquire(attempt=1, from_step=0)
    first.close()
    open_ledger().acquire(attempt=1, from_step=0)
    before = events(tmp_path)
    with pytest.raises(Fenced):
        first.charge(1)
    assert events(tmp_path) == before


def test_entry_is_written_after_the_ledger_has_accepted(
    tmp_path: Path, open_ledger: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger()
    ledger.acquire(attempt=1, from_step=0)
    charge, lengths = FileLedger.charge, []

    def charge_and_look(self: FileLedger, steps: int) -> Any:
        lengths.append(len(entries(tmp_path)))
        state = charge(self, steps)
        lengths.append(len(entries(tmp_path)))
        return state

    monkeypatch.setattr(FileLedger, "charge", charge_and_look)
    ledger.charge(1)
    assert lengths == [2, 2]
    assert len(entries(tmp_path)) == 3


def test_write_that_a_killed_process_could_not_log_is_added(tmp_path: Path, open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.acquire(attempt=1, from_step=0)
    ledger.charge(1)
    ledger._ledger.charge(4)  # and the process is killed before it logs this
    ledger.close()
    open_ledger().acquire(attempt=1, from_step=0)
    assert [(entry["event"], entry.get("recovered", False)) for entry in entries(tmp_path)[-3:]] == [
        ("Charge", False),
        ("Charge", True),
        ("Resume", False),
    ]
    assert verified(tmp_path) == 5


def test_log_of_a_run_that_had_none_is_complete(tmp_path: Path, open_ledger: Open, new_ledger: Path) -> None:
    plain = FileLedger(new_ledger)
    plain.acquire(attempt=1, from_step=0)
    plain.charge(2)
    plain.record_outcome("Suspended")
    plain.close()
    open_ledger().acquire(attempt=2, from_step=0)
    assert events(tmp_path) == ["Open", "Start", "Charge", "Interruption", "Resume"]
    assert verified(tmp_path) == 2


def test_ledger_that_was_rolled_back_is_refused(tmp_path: Path, open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.acquire(attempt=1, from_step=0)
    old = (tmp_path / NAME).read_bytes()
    ledger.charge(1)
    ledger.close()
    (tmp_path / NAME).write_bytes(old)
    before = events(tmp_path)
    with pytest.raises(LedgerCorrupt, match="entry 3 of the ledger, which it lacks"):
        open_ledger().acquire(attempt=1, from_step=0)
    assert FileLedger(tmp_path).read().length == 2, "a run that is refused acquires nothing"
    assert events(tmp_path) == before


def test_changed_log_is_refused(tmp_path: Path, open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.acquire(attempt=1, from_step=0)
    ledger.close()
    path = tmp_path / AUDIT_LOG
    path.write_bytes(path.read_bytes().replace(b'"plannedSteps":2250', b'"plannedSteps":2251'))
    with pytest.raises(AuditLogCorrupt, match="line 1 was changed"):
        open_ledger().acquire(attempt=1, from_step=0)
    assert FileLedger(tmp_path).read().length == 2


def test_log_of_another_job_is_refused_before_anything_is_charged(tmp_path: Path, open_ledger: Open) -> None:
    other = AuditLog(LineFile(tmp_path / AUDIT_LOG), job="another", job_uid="another", process="rank 0")
    other.append(Event.REFUSAL, {"reason": "InvalidManifest", "message": "not this job"})
    with pytest.raises(AuditLogCorrupt, match=r"line 1 is of another job \(another\); .* move it away"):
        open_ledger().acquire(attempt=1, from_step=0)
    assert FileLedger(tmp_path).read().length == 1


def test_refusal_by_another_process_keeps_the_chain(tmp_path: Path, open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.acquire(attempt=1, from_step=0)
    refused = AuditLog(LineFile(tmp_path / AUDIT_LOG), job="claims-triage", job_uid="3f2a91c0", process="driver")
    refused.load()
    ledger.charge(1)
    assert refused.append(Event.REFUSAL, {"reason": "LedgerLocked", "message": "another run is using it"})
    ledger.charge(1)
    assert events(tmp_path)[2:] == ["Charge", "Refusal", "Charge"]
    assert verified(tmp_path) == 2


def test_write_that_a_later_holder_has_logged_is_not_logged_twice(tmp_path: Path, new_ledger: Path) -> None:
    """In a cluster the old holder may still be about to log its last write. Nothing locks the log."""
    ledger, old, new = FileLedger(new_ledger), _log(tmp_path), _log(tmp_path)
    states = [ledger.read(), ledger.acquire(attempt=1, from_step=0), ledger.charge(1)]
    for state in states[:2]:
        AuditedLedger(ledger, old)._log_changes(state)
    new.load()
    AuditedLedger(ledger, new)._log_changes(states[2], recovered=True)
    AuditedLedger(ledger, old)._log_changes(states[2])
    assert events(tmp_path) == ["Open", "Start", "Charge"]


def test_several_writes_in_one_state_give_all_their_entries(new_ledger: Path) -> None:
    """A ledger in a cluster keeps no old states."""
    ledger = FileLedger(new_ledger)
    ledger.acquire(attempt=1, from_step=0)
    ledger.record_dataset("d")
    ledger.charge(2)
    ledger.record_checkpoint(published(2, final=True))
    state = ledger.record_outcome("Completed")
    found = missing_entries(Position(length=1), state)
    assert [event.value for event, _ in found] == ["Resume", "Dataset", "Charge", "Publication", "End"]
    assert {values["ledgerHead"] for _, values in found} == {state.head}


def test_position_ignores_what_is_no_write_of_the_ledger(tmp_path: Path, open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.acquire(attempt=1, from_step=0)
    before = ledger.log.position
    ledger.log.append(Event.EVALUATION, {"attempt": 1, "incarnation": 1, "step": 0, "visibility": "Public"})
    assert ledger.log.position == before
    assert position_after([]) == Position() and ledger.log.head != NO_HASH


def _log(directory: Path) -> AuditLog:
    return AuditLog(LineFile(directory / AUDIT_LOG), job="claims-triage", job_uid="3f2a91c0", process="rank 0")


def _train_until_killed(directory: Path, attempt: int) -> None:
    ledger = AuditedLedger(FileLedger(directory), _log(directory))
    ledger.acquire(attempt=attempt, from_step=0)
    while True:
        ledger.charge(1)
        ledger.record_checkpoint(published(1))


@pytest.mark.slow
def test_log_is_complete_after_kills_at_random_moments(tmp_path: Path, open_ledger: Open) -> None:
    generator, context = random.Random(7), get_context("fork")
    for attempt in range(1, 31):
        process = context.Process(target=_train_until_killed, args=(tmp_path, attempt))
        process.start()
        process.join(generator.uniform(0.005, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    open_ledger().acquire(attempt=31, from_step=0)
    assert verified(tmp_path) == FileLedger(tmp_path).read().steps_charged > 0


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_line_that_a_kill_cut_is_written_again(tmp_path: Path, open_ledger: Open, cut: int) -> None:
    ledger = open_ledger()
    ledger.acquire(attempt=1, from_step=0)
    ledger.charge(1)
    ledger.close()
    path = tmp_path / AUDIT_LOG
    path.write_bytes(path.read_bytes()[:-cut])
    open_ledger().acquire(attempt=1, from_step=0)
    assert events(tmp_path) == ["Open", "Start", "Charge", "Resume"]
    assert verified(tmp_path) == 1
