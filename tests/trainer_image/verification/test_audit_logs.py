"""`tensafe verify --audit-log`: a real log is verified, and no change of it is missed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensafe_api.statement.contents import canonical_json
from tensorguard.audit_log.entries import COMMON, FIELDS, NO_HASH, Event, make_line
from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.cli.main import main
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.ledger.file import FileLedger
from tensorguard.verification.audit_logs import NOT_ANCHORED, AuditReport, verify_audit_log
from tensorguard.verification.checkpoint import verify_checkpoint
from tensorguard.verification.errors import NotVerified
from tensorguard.verification.ledgers import LedgerHistory, read_file_ledger
from tests.support.trainer.rank_harness import Job


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps, which was refused once."""
    job = Job.make(
        tmp_path_factory.mktemp("audited") / "run",
        "spec.cluster.workers=1",
        "spec.training.steps=4",
        "spec.checkpoint.everySteps=2",
        "spec.observability.auditLog=Enabled",
    )
    job.train_alone()
    assert job.ended().reason == "Completed"
    return job.directory


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run", ignore=shutil.ignore_patterns("model")))


def lines_of(run: Path) -> list[bytes]:
    return (run / AUDIT_LOG).read_bytes().splitlines(keepends=True)


def refused(run: Path, content: bytes, *, ledger: bool = False) -> str:
    log = run.parent / "changed.jsonl"
    log.write_bytes(content)
    with pytest.raises(NotVerified) as error:
        verify_audit_log(str(log), (lambda uid: read_file_ledger(run)) if ledger else None)
    assert error.value.file == str(log)
    return error.value.problem


def chain(values: list[dict[str, Any]]) -> bytes:
    """A new chain of entries, as someone who may write to the file could make."""
    text, previous = b"", NO_HASH
    for number, each in enumerate(values, start=1):
        content = {name: value for name, value in each.items() if name not in ("number", "previous", "hash", "time")}
        line = make_line(number, previous, Event(content.pop("event")), content)
        text, previous = text + line + b"\n", json.loads(line)["hash"]
    return text


@pytest.mark.slow
def test_log_of_a_run_is_verified(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--audit-log", str(run), "--ledger", str(run)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("verified: the audit log of tiny, 12 lines, 4 charged steps\n")
    assert "not checked" not in printed


@pytest.mark.slow
def test_checkpoint_and_log_are_verified_together(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verify", str(run / "checkpoints" / "final"), "--audit-log", str(run / AUDIT_LOG), "-o", "json"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verified"] and report["checkpoint"] == "final"
    assert report["auditLog"]["checked"][-1] == "the statement names line 10, and line 11 records its publication"
    assert report["auditLog"]["stepsCharged"] == 4


@pytest.mark.slow
def test_reason_and_line_are_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(run)
    (run / AUDIT_LOG).write_bytes(b"".join([*lines[:6], *lines[7:]]))
    assert main(["verify", "--audit-log", str(run)]) == 1
    sentence = "line 7 does not follow from the line before it: a line was removed, added or moved"
    assert capsys.readouterr().err == f"not verified: {run / AUDIT_LOG}: {sentence}\n"


def test_command_needs_something_to_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 2
    assert main(["verify", "--audit-log", str(tmp_path / "nothing")]) == 2
    assert "there is no audit log" in capsys.readouterr().err
    assert main(["verify", "--audit-log", str(tmp_path), "--output-dir", str(tmp_path / "copy")]) == 2
    assert "--output-dir is about a checkpoint: name its folder" in capsys.readouterr().err


def test_folder_without_an_audit_log_is_no_damaged_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.png").write_bytes(b"")
    assert main(["verify", "--audit-log", str(tmp_path)]) == 2
    assert f"{tmp_path}: there is no audit log; pass the audit.jsonl of a run" in capsys.readouterr().err
    (tmp_path / "00000002.json").write_bytes(b"{}")
    assert main(["verify", "--audit-log", str(tmp_path)]) == 1
    assert "line 1 is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_changed_byte_of_every_line_is_noticed(run: Path) -> None:
    generator, lines = random.Random(3), lines_of(run)
    for number, line in enumerate(lines, start=1):
        for position in [*generator.sample(range(len(line)), 20), len(line) - 1]:
            changed = bytearray(line)
            changed[position] ^= generator.randrange(1, 256)
            text = b"".join([*lines[: number - 1], bytes(changed), *lines[number:]])
            assert refused(run, text).startswith(f"line {number} "), (number, position)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_removed_added_or_moved_line_is_noticed(trained_run: Path, data: st.DataObject) -> None:
    lines = lines_of(trained_run)
    first = data.draw(st.integers(0, len(lines) - 2))
    other = data.draw(st.integers(0, len(lines) - 1).filter(lambda number: number != first))
    change = data.draw(st.sampled_from(["remove", "repeat", "copy", "swap", "cut"]))
    changed = list(lines)
    match change:
        case "remove":
            del changed[first]
        case "repeat":
            changed.insert(first, lines[first])
        case "copy":
            changed[first] = lines[other]
        case "swap":
            changed[first], changed[other] = lines[other], lines[first]
        case "cut":
            changed[first] = lines[first][: data.draw(st.integers(0, len(lines[first]) - 1))]
    log = trained_run.parent / "changed.jsonl"
    log.write_bytes(b"".join(changed))
    with pytest.raises(NotVerified, match="line "):
        verify_audit_log(str(log))


def test_lines_that_are_cut_off_at_the_end_are_noticed_with_the_ledger(run: Path) -> None:
    lines = lines_of(run)
    for kept in range(1, len(lines)):
        assert refused(run, b"".join(lines[:kept]), ledger=True).startswith(f"line {kept} is the last one, but")
    assert refused(run, b"", ledger=True) == "line 1 is missing: the log is empty"


def test_lines_that_are_cut_off_before_a_publication_are_noticed_with_the_checkpoint(run: Path) -> None:
    checkpoint, lines = verify_checkpoint(str(run / "checkpoints" / "final")), lines_of(run)
    for kept in range(1, 11):
        (run / AUDIT_LOG).write_bytes(b"".join(lines[:kept]))
        with pytest.raises(NotVerified, match=f"line {kept} is the last one, but"):
            verify_audit_log(str(run), None, checkpoint)


def test_log_that_was_replaced_is_noticed_with_the_checkpoint(run: Path) -> None:
    checkpoint = verify_checkpoint(str(run / "checkpoints" / "final"))
    values = [json.loads(line) for line in lines_of(run)]
    values[4]["publicKeys"] = ["sha256:other"]
    (run / AUDIT_LOG).write_bytes(chain(values))
    assert verify_audit_log(str(run)).not_checked == [NOT_ANCHORED]
    with pytest.raises(NotVerified, match="line 10 is not the line that the checkpoint names"):
        verify_audit_log(str(run), None, checkpoint)


def test_charge_that_the_log_hides_is_noticed_with_the_ledger(run: Path) -> None:
    values = [json.loads(line) for line in lines_of(run)]
    hidden = [each for number, each in enumerate(values, start=1) if number != 7]
    for each, total in zip((each for each in hidden if each["event"] == "Charge"), (1, 2, 3), strict=True):
        each["stepsCharged"] = total
    problem = refused(run, chain(hidden), ledger=True)
    assert problem == "line 7 (Publication) is not what the ledger has as its entry 6 (Charge)"


def test_charge_that_the_ledger_lacks_is_noticed(run: Path) -> None:
    ledger = run / LEDGER
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:8]))
    problem = refused(run, (run / AUDIT_LOG).read_bytes(), ledger=True)
    assert problem.startswith("line 10 (Charge) is not in the ledger, which ends before it")


@pytest.mark.parametrize("event", ["Charge", "Publication", "End", "Start", "Open"])
@pytest.mark.parametrize("place", [{}, {"ledgerLength": "10", "ledgerHead": "0"}, {"ledgerLength": True}])
def test_write_that_names_no_entry_of_the_ledger_is_noticed(run: Path, event: str, place: dict[str, Any]) -> None:
    """Without its place in the ledger, nothing would compare it with the ledger."""
    values = [json.loads(line) for line in lines_of(run)]
    invented = {**next(each for each in values if each["event"] == event), "steps": 1, "uri": "s3://elsewhere"}
    kept = {name: value for name, value in invented.items() if name in FIELDS[Event(event)] | set(COMMON)}
    for name in ("ledgerLength", "ledgerHead", "stepsCharged"):
        kept.pop(name, None)
    problem = refused(run, chain([*values, kept | place]), ledger=True)
    assert problem == f"line 13 ({event}) does not name the entry of the ledger that it records"


def test_field_and_event_that_no_run_writes_are_noticed(run: Path) -> None:
    lines = lines_of(run)
    for change, problem in (
        ({"note": "approved"}, "line 13 (KeyAgreement) has the field note, which its event has not"),
        ({"event": "Approval"}, "line 13 records 'Approval', which is no event of this release"),
    ):
        added = {**json.loads(lines[4]), **change, "number": 13, "previous": json.loads(lines[-1])["hash"]}
        del added["hash"]
        added["hash"] = hashlib.sha256(canonical_json(added)).hexdigest()
        assert refused(run, b"".join(lines) + canonical_json(added) + b"\n", ledger=True) == problem


def test_checkpoint_that_a_cluster_did_not_publish_is_noticed(run: Path) -> None:
    values = [json.loads(line) for line in lines_of(run)]
    values.insert(-1, values[-2])
    (run / AUDIT_LOG).write_bytes(chain(values))
    with pytest.raises(NotVerified, match="line 12 names a checkpoint that the ledger lacks"):
        verify_audit_log(str(run), in_cluster(run))


def test_wrong_sum_of_charges_is_noticed(run: Path) -> None:
    values = [json.loads(line) for line in lines_of(run)]
    values[6]["stepsCharged"] = 1
    assert refused(run, chain(values)) == "line 7 states 1 charged steps, and the charges up to it add up to 2"


def test_line_of_another_job_is_noticed(run: Path) -> None:
    values = [json.loads(line) for line in lines_of(run)]
    values[4]["jobUID"] = "another"
    assert refused(run, chain(values)).startswith("line 5 is of another job")


def test_ledger_and_checkpoint_of_another_job_are_noticed(run: Path) -> None:
    values = [{**json.loads(line), "jobUID": "another"} for line in lines_of(run)]
    (run / AUDIT_LOG).write_bytes(chain(values))
    with pytest.raises(NotVerified, match="ledger: is that of the job tiny"):
        verify_audit_log(str(run), lambda uid: read_file_ledger(run))
    with pytest.raises(
        NotVerified, match=r"of the job tiny \(UID another\), and the checkpoint is of tiny \(UID tiny-uid\)"
    ):
        verify_audit_log(str(run), None, verify_checkpoint(str(run / "checkpoints" / "final")))


def in_cluster(run: Path, length: int = 0) -> Callable[[str], LedgerHistory]:
    """The ledger as a cluster keeps it: its last state only."""
    states = FileLedger(run).history()
    return lambda uid: LedgerHistory([states[length - 1]], "clinic/tiny")


def test_ledger_of_a_cluster_is_compared(run: Path) -> None:
    report = verify_audit_log(str(run), in_cluster(run))
    assert [each.split(":")[0] for each in report.not_checked] == ["each old write"]
    lines = lines_of(run)
    (run / AUDIT_LOG).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(NotVerified, match="line 11 is the last one, but the ledger has 11 entries"):
        verify_audit_log(str(run), in_cluster(run))
    with pytest.raises(NotVerified, match="line 11 comes after writes that the ledger lacks"):
        verify_audit_log(str(run), in_cluster(run, 9))


@pytest.mark.parametrize(("field", "value"), [("ledgerHead", "ab" * 32), ("digest", "sha256:other")])
def test_other_values_than_those_of_a_cluster_are_noticed(run: Path, field: str, value: str) -> None:
    values = [json.loads(line) for line in lines_of(run)]
    changed = next(each for each in reversed(values) if field in each)
    changed[field] = value
    (run / AUDIT_LOG).write_bytes(chain(values))
    with pytest.raises(NotVerified, match=f"line {values.index(changed) + 1} names another"):
        verify_audit_log(str(run), in_cluster(run))


def test_objects_are_verified(run: Path) -> None:
    uri, lines = "memory://verified/audit-1", lines_of(run)
    fs = fsspec.filesystem("memory")
    for number, line in enumerate(lines, start=1):
        fs.pipe_file(f"{uri}/{number:08d}.json", line)
    report: AuditReport = verify_audit_log(uri, lambda job_uid: read_file_ledger(run))
    assert report.entries == len(lines) == 12
    fs.rm_file(f"{uri}/00000005.json")
    with pytest.raises(NotVerified, match="line 5 is missing, and there are objects after it"):
        verify_audit_log(uri)


@pytest.mark.slow
def test_checkpoint_of_a_job_without_an_audit_log_is_refused(run: Path, tmp_path: Path) -> None:
    job = Job.make(tmp_path / "plain", "spec.cluster.workers=1", "spec.training.steps=1")
    job.train_alone()
    assert not (job.directory / AUDIT_LOG).exists()
    checkpoint = verify_checkpoint(str(job.directory / "checkpoints" / "final"))
    with pytest.raises(NotVerified, match="is not named by this checkpoint: the job kept no audit log"):
        verify_audit_log(str(run), None, checkpoint)
