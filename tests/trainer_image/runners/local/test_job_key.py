"""The job key: with it, the published digest of the data set tests guesses of the data, so it never lies beside it."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest

from tensorguard.ledger.file import FileLedger
from tensorguard.runners.local import driver
from tensorguard.runners.local.driver import RunResult
from tensorguard.runners.local.private_folder import PrivateFolder
from tensorguard.runners.run_folder import LOCK_FILE, is_run_locked, lock_run_folder
from tests.support.trainer.local_runs import Folder, lost, reason, refusal, stopped
from tests.support.trainer.rank_harness import shard_records

EXHAUSTED = ("spec.privacy.noiseMultiplier=0.9", "spec.privacy.targetEpsilon=2", "spec.training.steps=9")


def keys_of(folder: Folder) -> list[Path]:
    return sorted(folder.private.glob("job-*.key"))


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that runs of the test have created."""
    created: list[bytes] = []
    create = PrivateFolder.create_key

    def creating(private: PrivateFolder, uid: str) -> None:
        create(private, uid)
        created.append(private.key_file(uid).read_bytes())

    monkeypatch.setattr(PrivateFolder, "create_key", creating)
    return created


def test_runs_that_share_a_private_folder_do_not_run_at_once(folder: Folder) -> None:
    """Two run folders in one checkpoint folder have one private folder, where each run keeps its shards."""
    checkpoints = f"spec.checkpoint.uri={folder.output.parent}"
    shared = PrivateFolder.of(folder.output, str(folder.output.parent)).path
    shared.mkdir(mode=0o700)
    with lock_run_folder(shared):
        assert f"another run uses {shared}" in str(refusal(folder, checkpoints))
    assert [path.name for path in folder.output.iterdir()] == [LOCK_FILE]
    assert [path.name for path in shared.iterdir() if path.suffix == ".key"] == []


def test_run_holds_the_lock_of_its_private_folder(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = []

    def observe(run: Any, *args: Any) -> None:
        locked.append(is_run_locked(folder.private))
        raise lost()

    with monkeypatch.context() as patch:
        patch.setattr(driver._Run, "_prepare", observe)
        folder.run()
    assert locked == [True]
    assert folder.run().exit_code == 0, "the lock is released"


@pytest.mark.parametrize("inside", ["", "/checkpoints"])
def test_checkpoints_in_the_private_folder_are_refused(folder: Folder, inside: str) -> None:
    refused = str(refusal(folder, f"spec.checkpoint.uri={folder.private}{inside}"))
    assert "is in the run's private folder" in refused
    assert "choose another location" in refused


@pytest.mark.slow
def test_membership_cannot_be_tested_from_what_a_run_publishes(folder: Folder, key: list[bytes]) -> None:
    """A reader who knows all records but one would find the last one, if the key were among the files."""
    result = folder.run()
    assert result.exit_code == 0

    def digest_of(rows: list[dict[str, Any]]) -> str:
        work = folder.base / "guess"
        work.mkdir(exist_ok=True)
        return shard_records(work, result.job, rows, key[0])[1]

    published = FileLedger(folder.output).read().dataset_digest
    assert digest_of(folder.rows) == published
    assert digest_of(folder.rows[1:]) != published
    shutil.rmtree(folder.base / "guess")

    forms = [key[0], key[0].hex().encode(), base64.b64encode(key[0]), base64.urlsafe_b64encode(key[0])]
    files = [path for path in folder.base.rglob("*") if path.is_file()]
    assert {"ledger.jsonl", "statement.json", "adapter_model.safetensors"} <= {path.name for path in files}
    assert not [path for path in files if any(form in path.read_bytes() for form in forms)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "outcome"), [((), "Completed"), (EXHAUSTED, "BudgetExhausted")], ids=["completed", "exhausted"]
)
def test_key_is_deleted_when_the_run_is_over(folder: Folder, overrides: tuple[str, ...], outcome: str) -> None:
    folder.run(*overrides)
    assert folder.ledger().read().outcome == outcome
    assert not folder.private.exists()


@pytest.mark.slow
def test_key_is_kept_outside_the_runs_folder_until_no_resume_needs_it(folder: Folder) -> None:
    stopped(folder)
    (kept,) = keys_of(folder)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert folder.private.stat().st_mode & 0o777 == 0o700
    assert (folder.private / ".gitignore").read_text() == "*\n"
    content = kept.read_bytes()
    assert not [path for path in folder.output.rglob("*") if path.is_file() and content in path.read_bytes()]
    folder.fails = lost()
    assert folder.run(resume=True).exit_code == 1
    assert keys_of(folder) == [kept]
    folder.fails = None
    assert folder.run(resume=True).exit_code == 0
    assert not keys_of(folder)


@pytest.mark.slow
def test_tracebacks_are_in_the_private_folder_until_the_run_is_over(folder: Folder) -> None:
    folder.fails = ValueError("an error of a library")
    folder.fails.__cause__ = ValueError("Jane Doe, born 1970")
    result = folder.run()
    assert f"{folder.private}/errors-driver.log has the traceback" in str(reason(result)[1])
    (tracebacks,) = folder.private.glob("errors-*.log")
    assert "Jane Doe" in tracebacks.read_text()
    assert not [path for path in folder.output.rglob("*") if path.is_file() and b"Jane Doe" in path.read_bytes()]
    folder.fails = None
    assert folder.run(resume=True).exit_code == 0
    assert not folder.private.exists()


@pytest.mark.slow
def test_key_that_a_killed_run_left_is_deleted_by_the_next_call(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PrivateFolder, "delete_secrets", lambda private, uid: None)  # killed just before
        folder.run()
    assert keys_of(folder)
    assert "is over (Completed)" in str(refusal(folder, resume=True))
    assert not folder.private.exists()


@pytest.mark.slow
def test_key_is_kept_where_the_ledger_cannot_be_read_at_the_end(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = driver._Run.result

    def result(one: Any) -> RunResult:
        ledger = folder.output / "ledger.jsonl"
        ledger.write_text(ledger.read_text().replace('"steps":1', '"steps":0', 1))
        return run(one)

    monkeypatch.setattr(driver._Run, "result", result)
    assert reason(folder.run())[0] == "LedgerCorrupt"
    assert keys_of(folder)


def test_run_that_failed_before_its_first_charge_leaves_no_key(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any) -> None:
        raise OSError("the data is not there yet")

    monkeypatch.setattr(driver._Run, "_prepare", unreadable)
    assert folder.run().exit_code == 1
    assert not keys_of(folder)


def test_key_of_a_killed_run_that_spent_nothing_is_replaced(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(driver, "run_in_background", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.run()
    (abandoned,) = keys_of(folder)
    folder.stop_at = 1
    folder.run()
    assert abandoned not in keys_of(folder)
    assert len(keys_of(folder)) == 1


@pytest.mark.slow
def test_moved_run_resumes_only_with_its_private_folder(folder: Folder) -> None:
    stopped(folder)
    moved = folder.base / "moved"
    folder.output.rename(moved)
    refused = str(refusal(folder, resume=True, output=moved))
    assert "moved.private/job-" in refused
    assert "is missing; restore it" in refused
    assert "*.private has to come with it" in refused
    folder.private.rename(folder.base / "moved.private")
    assert folder.run(resume=True, output=moved).exit_code == 0


@pytest.mark.slow
def test_run_in_the_place_of_a_moved_one_keeps_the_key_of_that_one(folder: Folder) -> None:
    stopped(folder)
    (first,) = keys_of(folder)
    folder.output.rename(folder.base / "moved")
    folder.run("spec.checkpoint.uri=elsewhere")
    assert keys_of(folder) == [first]
