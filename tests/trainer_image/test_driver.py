"""The RayJob's entrypoint without Ray: its exit code for each reason, and that it prints only one sentence."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tensafe_api.driver_exit_codes import driver_exit_code, reason_for_exit_code
from tensafe_api.reasons import Reason
from tensorguard.aggregation.channel import AggregationError
from tensorguard.checkpoint.store import CheckpointCorrupt, CheckpointError
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.ledger.contract import DatasetChanged, Fenced, LedgerCorrupt, LedgerForbidden, LedgerUnreachable
from tensorguard.models.source import ModelNotFoundError
from tensorguard.runners.pod.pod_files import ROOT_VARIABLE, PodFiles
from tensorguard.runners.preflight import RunRefused
from tensorguard.runners.worker_group import RankFailed, RayTimeoutError, WorkersFailed
from tensorguard.training.stop_signal import StopSignal

RECORD = "Jane Doe has diabetes"
WORKER = "the ledger is unavailable"

CALL = """
import sys
from tensorguard import driver
{run}
sys.exit(driver.main(run))
"""

START_WORKERS = """
from pathlib import Path
from ray import cloudpickle
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from tensafe_api.reasons import Reason
from tensorguard.runners import worker_group
from tensorguard.runners.pod.attempt import worker_function

DataParallelTrainer.fit = lambda trainer: cloudpickle.loads(cloudpickle.dumps(trainer.train_loop_per_worker))
worker_group._wait_for_resources = lambda group, seconds: None

def run(files, stop):
    worker_group.run_workers(worker_function, {}, worker_group.WorkerGroup(2, 1, 0, 0), files.root / "ray")
    return Reason.COMPLETED, ", ".join({"torch", "scipy", "dp_accounting"} & set(sys.modules)) or "nothing heavy"
"""
"""The driver without Ray: it configures Ray Train, and unpickles the function as Ray Train's controller does."""


def call(root: Path, run: str) -> subprocess.CompletedProcess[str]:
    """The entrypoint, with `run` in place of the attempt."""
    return subprocess.run(
        [sys.executable, "-c", CALL.format(run=run)],
        env={**os.environ, ROOT_VARIABLE: str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> object:
    """A function that ends an attempt with a given result; it returns what was printed, and the exit code."""
    from tensorguard import driver

    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(driver, "HOOK_SECONDS", 0.0)
    printed: list[str] = []
    monkeypatch.setattr(driver, "redirect_output", lambda path: printed.append)

    def end(result: tuple[Reason, str] | Exception) -> tuple[str, int]:
        def run(*_: object) -> tuple[Reason, str]:
            if isinstance(result, Exception):
                raise result
            return result

        code = driver.main(run)
        return printed.pop(), code

    (tmp_path / "var/run/tensafe").mkdir(parents=True)
    return end


@pytest.mark.parametrize("reason", [Reason.COMPLETED, Reason.BUDGET_EXHAUSTED, Reason.INTERRUPTED])
def test_attempt_with_an_outcome_in_the_ledger_exits_with_0(end: object, reason: Reason) -> None:
    assert end((reason, "all 12 steps are done")) == (f"{reason}: all 12 steps are done.", 0)


def test_every_failure_reason_exits_with_its_code_and_prints_its_fix(end: object) -> None:
    reasons = [reason for reason in Reason if driver_exit_code(reason) != 1]
    assert len(reasons) == 21
    for reason in reasons:
        sentence, code = end((reason, "what happened"))
        assert reason_for_exit_code(code) is reason
        assert sentence == f"{reason}: what happened. {reason.fix}"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RunRefused("spec.evaluation.uri", "name other files"), Reason.INVALID_MANIFEST),
        (DataError("spec.dataset is empty"), Reason.DATASET_UNSUITABLE),
        (UnreadableDataError("spec.dataset.uri: permission denied"), Reason.DATASET_UNREADABLE),
        (ModelNotFoundError("no such model"), Reason.MODEL_UNAVAILABLE),
        (CheckpointError("cannot be written to"), Reason.CHECKPOINT_UNWRITABLE),
        (CheckpointCorrupt("is not what was written"), Reason.CHECKPOINT_CORRUPT),
        (LedgerCorrupt("is another ledger"), Reason.LEDGER_CORRUPT),
        (LedgerForbidden("cannot be read"), Reason.LEDGER_UNREACHABLE),
        (LedgerUnreachable("has not answered"), Reason.LEDGER_UNREACHABLE),
        (Fenced("is fenced"), Reason.LEDGER_LOCKED),
        (DatasetChanged("is another one"), Reason.CONFIGURATION_CHANGED),
        (AggregationError("disagreed"), Reason.AGGREGATION_FAILED),
        (RayTimeoutError("no resources"), Reason.RESOURCES_MISSING),
        (WorkersFailed(5, RankFailed(Reason.INTERNAL_ERROR, "KeyError")), Reason.WORKER_LOST),
        (WorkersFailed(5, RankFailed(Reason.LEDGER_UNREACHABLE, WORKER)), Reason.LEDGER_UNREACHABLE),
        (ValueError(RECORD), Reason.INTERNAL_ERROR),
    ],
)
def test_each_class_of_failure_has_its_exit_code(end: object, error: Exception, reason: Reason) -> None:
    sentence, code = end(error)
    assert code == driver_exit_code(reason)
    assert sentence.startswith(f"{reason}: ")
    assert RECORD not in sentence


@pytest.mark.slow
def test_no_record_is_printed_by_any_library(tmp_path: Path) -> None:
    done = call(
        tmp_path,
        f"""
import os, threading
def fails():
    raise KeyError({RECORD!r})
def run(files, stop):
    print({RECORD!r})
    print({RECORD!r}, file=sys.stderr)
    os.system("echo {RECORD}")
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    raise ValueError({RECORD!r})
""",
    )
    assert done.returncode == driver_exit_code(Reason.INTERNAL_ERROR)
    assert RECORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr == ""
    kept = tmp_path / "var/run/tensafe/errors-driver.log"
    assert re.fullmatch(
        rf"InternalError: ValueError \(\S+/driver\.py, line \d+\); {kept} has the traceback\. "
        r"Report the message to the maintainers\.\n",
        done.stdout,
    )
    assert kept.read_text().count(RECORD) == 5
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.slow
def test_unwritable_folder_loses_the_traceback_but_not_the_sentence(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("no folder")
    done = call(tmp_path, f"def run(files, stop): raise ValueError({RECORD!r})")
    assert done.returncode == driver_exit_code(Reason.INTERNAL_ERROR)
    assert done.stdout.startswith("InternalError: ValueError")
    assert RECORD not in done.stdout + done.stderr


@pytest.mark.slow
def test_sigterm_sets_the_stop_flag(tmp_path: Path) -> None:
    done = call(
        tmp_path,
        """
import os, signal
from tensafe_api.reasons import Reason
def run(files, stop):
    assert not stop
    os.kill(os.getpid(), signal.SIGTERM)
    return Reason.INTERRUPTED, f"stopped: {bool(stop)}"
""",
    )
    assert (done.returncode, done.stdout) == (0, "Interrupted: stopped: True.\n")


@pytest.mark.parametrize("late", [False, True])
def test_terminating_head_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """KubeRay would take output for the end of the job. The hook may run later than those of the workers."""
    from tensorguard import driver

    class Killed(Exception):
        pass

    def interrupted(files: PodFiles, stop: StopSignal) -> tuple[Reason, str]:
        if late:
            threading.Timer(0.3, StopSignal.of(files.run).request).start()
        else:
            StopSignal.of(files.run).request()
        return Reason.INTERRUPTED, "stopped on request"

    def pause() -> None:
        raise Killed

    printed: list[str] = []
    (tmp_path / "var/run/tensafe").mkdir(parents=True)
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("signal.pause", pause)
    monkeypatch.setattr(driver, "HOOK_SECONDS", 60.0)
    monkeypatch.setattr(driver, "redirect_output", lambda path: printed.append)
    with pytest.raises(Killed):
        driver.main(interrupted)
    assert printed == []


@pytest.mark.parametrize("reason", [Reason.COMPLETED, Reason.DATASET_UNREADABLE])
def test_terminating_head_prints_other_reasons(end: object, tmp_path: Path, reason: Reason) -> None:
    StopSignal.of(tmp_path / "var/run/tensafe").request()
    sentence, _ = end((reason, "what happened"))
    assert sentence.startswith(reason)


@pytest.mark.slow
def test_entrypoint_names_the_missing_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tensorguard.driver"],
        env={**os.environ, ROOT_VARIABLE: str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == driver_exit_code(Reason.INVALID_MANIFEST)
    assert done.stdout.startswith(f"InvalidManifest: {tmp_path}/etc/tensafe/job/job.json cannot be read (")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.slow
def test_driver_imports_no_heavy_package(tmp_path: Path) -> None:
    """Ray Train's controller imports the driver's modules again, one after the other, before a worker starts."""
    assert call(tmp_path, START_WORKERS).stdout == "Completed: nothing heavy.\n"
