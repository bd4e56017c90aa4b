"""A full disk: it is recognised behind any error, the folder is named, and it ends a run without a restart.

/dev/full refuses each write as a full disk does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import OutOfDiskError, RayTaskError

from tensafe_api.reasons import Reason
from tensorguard.checkpoint import store as store_module
from tensorguard.checkpoint.store import CheckpointError, CheckpointStore
from tensorguard.disk_full import describe_full_disk, names_file
from tensorguard.ledger.contract import LedgerError
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.runners import run_folder
from tensorguard.runners.local import driver
from tensorguard.runners.local.driver_log import DriverLog
from tensorguard.runners.run_folder import write_owner_only
from tensorguard.runners.worker_group import RankFailed, WorkersFailed
from tensorguard.training.collective_errors import describe_error, would_fail_again
from tensorguard.training.config import PRIVATE_METRICS, RUN_LOG, append_traceback
from tensorguard.training.private_metrics import PrivateMetrics
from tensorguard.training.run_log import Preparing, RunLog
from tests.support.trainer.local_runs import Folder, reason, refusal
from tests.support.trainer.rank_harness import Job

FULL = OSError(errno.ENOSPC, "No space left on device")


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def raised(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as found:
        call()
    return found.value


def wrapped(error: Exception) -> Exception:
    def call() -> None:
        try:
            raise error
        except OSError as cause:
            raise LedgerError("/runs/a/ledger.jsonl cannot be written") from cause

    return raised(call)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FULL, "no space left on device: free space there, and resume"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/runs/a/stop"),
            "no space left on device in /runs/a: free space there, and resume",
        ),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", b"/b/c"),
            "disk quota exceeded in /b: free space there, and resume",
        ),
        (wrapped(FULL), "no space left on device (/runs/a/ledger.jsonl cannot be written)"),
        (RayTaskError("read", "patient 7", FULL).as_instanceof_cause(), "no space left on device: free"),
        (OutOfDiskError(), "no space left on device in the folder for temporary files (TMPDIR): free"),
    ],
)
def test_full_disk_is_the_reason_whatever_was_raised(error: Exception, sentence: str) -> None:
    """A ledger that cannot be written for lack of space is not corrupt, and a file is not a fault of this software."""
    found, message = describe_error(error)
    assert found is Reason.DISK_FULL
    assert message.startswith(sentence)
    assert would_fail_again(error)


def test_other_errors_are_no_full_disk() -> None:
    circular = ValueError("a")
    circular.__cause__ = circular
    for error in (circular, OSError(errno.EACCES, "Permission denied", "/a"), LedgerError("it was edited")):
        assert describe_full_disk(error) is None


def test_file_that_an_error_names_already_is_kept() -> None:
    def write() -> None:
        with names_file(Path("/outer/file")), names_file(Path("/inner/file")):
            full()

    assert describe_full_disk(raised(write)) == "no space left on device in /inner"


def test_failed_writes_of_a_run_name_its_folders(tmp_path: Path) -> None:
    for name in (RUN_LOG, PRIVATE_METRICS.format(rank=0)):
        (tmp_path / name).symlink_to("/dev/full")
    folder = f"no space left on device in {tmp_path}"
    assert describe_full_disk(raised(lambda: RunLog(tmp_path / RUN_LOG).write(Preparing(0.0, "a")))) == folder
    metrics = PrivateMetrics(tmp_path, 0)
    assert describe_full_disk(raised(lambda: metrics.record_evaluation(1, 0.5, {}))) == folder


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty job key would otherwise be taken for a key."""
    fdopen = os.fdopen
    monkeypatch.setattr(run_folder.os, "fdopen", lambda _, mode: fdopen(os.open("/dev/full", os.O_WRONLY), mode))
    error = raised(lambda: write_owner_only(tmp_path / "job.key", b"key"))
    assert describe_full_disk(error) == f"no space left on device in {tmp_path}"
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_of_a_checkpoint_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "sync_directory", full)
    error = raised(lambda: CheckpointStore(str(tmp_path)).write("step-1", {"a": b"1"}))
    assert isinstance(error, CheckpointError)
    assert describe_error(error)[0] is Reason.DISK_FULL
    assert not list(tmp_path.iterdir())


def test_traceback_without_space_leaves_no_empty_file(tmp_path: Path) -> None:
    (tmp_path / "errors-rank0.log").symlink_to("/dev/full")
    assert append_traceback(tmp_path / "errors-rank0.log", 1) == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_run_charges_nothing_more_on_a_full_disk_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.make(tmp_path / "run", "spec.cluster.workers=1", "spec.training.steps=4", "spec.checkpoint.everySteps=2")
    with monkeypatch.context() as disk:
        disk.setattr(store_module, "sync_directory", full)
        error = raised(job.train_alone)
    found, message = describe_error(error)
    assert found is Reason.DISK_FULL
    assert f"{tmp_path}/run/checkpoints" in message
    assert would_fail_again(error)
    assert job.ledger().steps_charged == 2
    job.train_alone()
    assert job.ended().reason == "Completed"
    assert job.ledger().steps_recharged == 2


def test_reason_is_reported_where_the_run_log_has_no_space(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_end(log: DriverLog, *end: Any) -> Any:
        log._log.close()
        log._log._file = os.open("/dev/full", os.O_WRONLY)
        return original(log, *end)

    original = DriverLog.write_end
    monkeypatch.setattr(DriverLog, "write_end", write_end)
    folder.fails = WorkersFailed(0, RankFailed(*describe_error(FULL), final=True))
    assert reason(folder.run()) == ("DiskFull", "no space left on device: free space there, and resume")


def test_run_without_space_for_its_manifest_is_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(path: Path, content: bytes) -> None:
        with names_file(path):
            full()

    monkeypatch.setattr(driver, "replace_owner_only", replace)
    sentence = f"no space left on device in {folder.output}: free space there, or choose another --output-dir"
    assert str(refusal(folder)) == sentence
    assert not (folder.output / LEDGER).exists()
