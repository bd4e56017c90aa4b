"""The driver of an attempt in a cluster, with workers that do nothing: what it reads, sends, requests and returns."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensafe_operator.children.configuration import config_map, digest
from tensorguard.runners.pod import attempt as module
from tensorguard.runners.pod.attempt import RayUnavailable, joined_ray, read_result, run_attempt, set_stop_flag
from tensorguard.runners.pod.pod_files import ROOT_VARIABLE, PodFiles, PodFilesError
from tensorguard.runners.run_folder import hold_run_lock, is_run_locked
from tensorguard.runners.worker_group import WorkerGroup
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import Ended, RunLog, Stepped
from tensorguard.training.stop_signal import StopSignal
from tests.support.polling import TIMEOUT_SECONDS, wait_until
from tests.support.trainer.local_runs import lost
from tests.support.trainer.rank_harness import MANIFEST

RECORD = "Jane Doe has diabetes"


class Workers:
    """Replaces the worker group, and stores its arguments.

    Attributes:
        fails: the exception with which it ends; None for none.
        until: it runs until this flag is set.
        meanwhile: called before the end.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] | None = None
        self.group: WorkerGroup | None = None
        self.fails: Exception | None = None
        self.until: StopSignal | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def run_workers(self, function: Any, values: dict[str, Any], group: WorkerGroup, storage: Path) -> None:
        self.values, self.group = values, group
        wait_until(lambda: self.until is None or self.until, failure_message=lambda: "the flag was not set")
        self.meanwhile()
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def head(tmp_path: Path) -> PodFiles:
    """The files of a head pod: the job and the location of its ledger, and no key."""
    text = MANIFEST.replace("MODEL", "/m").replace("CHECKPOINTS", "/c")
    job, _ = resolve_job(load_manifest(text))
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "11-22", "namespace": "clinic"})})
    for folder in ("etc/tensafe/job", "var/run/tensafe"):
        (tmp_path / folder).mkdir(parents=True)
    written = config_map(job, 2, "tiny-ledger", "33-44", "digest of the key")
    for name, text in written["data"].items():
        (tmp_path / "etc/tensafe/job" / name).write_text(text)
    return PodFiles(tmp_path, digest(written))


@pytest.fixture
def workers(head: PodFiles, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Workers whose run folder is that of the head. Tasks on them run at once, in this process."""

    @contextmanager
    def no_ray(using_ray: threading.Lock) -> Iterator[None]:
        yield

    workers = Workers()
    monkeypatch.setenv(ROOT_VARIABLE, str(head.root))
    monkeypatch.setattr(module, "joined_ray", no_ray)
    monkeypatch.setattr(module, "run_workers", workers.run_workers)
    monkeypatch.setattr(module, "_workers", lambda: ["worker"])
    monkeypatch.setattr(module, "_run_on_workers", lambda task: [task()])
    return workers


def end(files: PodFiles, reason: Reason, message: str) -> None:
    """Write the run log that rank 0 leaves in its pod."""
    log = RunLog(files.run / RUN_LOG)
    log.write(Stepped(1.0, 12, 12))
    log.write(Ended(2.0, 2, reason.value, message))
    log.close()


def test_driver_reads_no_key_and_sends_nothing_to_workers(head: PodFiles, workers: Workers) -> None:
    end(head, Reason.COMPLETED, "all 12 steps are done")
    assert run_attempt(head, StopSignal()) == (Reason.COMPLETED, "all 12 steps are done")
    assert workers.values == {}
    assert workers.group == WorkerGroup(workers=2, cpus=1.0, gpus=0, max_restarts=5, one_per_node=True)
    assert not head.key_file.parent.exists()


def test_workers_without_a_logged_end_were_lost(head: PodFiles, workers: Workers) -> None:
    reason, _ = run_attempt(head, StopSignal())
    assert reason is Reason.WORKER_LOST


def test_failure_of_the_group_is_reported_without_foreign_messages(head: PodFiles, workers: Workers) -> None:
    workers.fails = lost()
    reason, message = run_attempt(head, StopSignal())
    assert reason is Reason.WORKER_LOST
    assert "after 5 restarts" in message
    workers.fails = ValueError(RECORD)
    reason, message = run_attempt(head, StopSignal())
    assert reason is Reason.INTERNAL_ERROR
    assert RECORD not in message
    assert RECORD in (head.run / "errors-driver.log").read_text()


def test_stop_request_is_forwarded_to_the_workers(head: PodFiles, workers: Workers) -> None:
    end(head, Reason.INTERRUPTED, "stopped on request after step 3 of 12")
    workers.until = StopSignal.of(head.run)
    stop = StopSignal()
    stop.request()
    assert run_attempt(head, stop) == (Reason.INTERRUPTED, "stopped on request after step 3 of 12")


@pytest.mark.slow
@pytest.mark.parametrize("answers", [[True, False], [False], []])
def test_terminating_head_stays_while_a_worker_may_train(
    head: PodFiles, workers: Workers, monkeypatch: pytest.MonkeyPatch, answers: list[bool]
) -> None:
    """This includes the case that one of two workers does not answer."""
    requests: list[object] = []

    def answer(task: object) -> list[Any]:
        if task is read_result:
            return [(Reason.INTERRUPTED, "stopped on request")]
        requests.append(task)
        return answers

    def asked_again() -> None:
        wait_until(lambda: len(requests) > 2)
        assert is_run_locked(head.run)

    monkeypatch.setattr(module, "_STOP_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(module, "_workers", lambda: ["one", "other"])
    monkeypatch.setattr(module, "_run_on_workers", answer)
    workers.meanwhile = asked_again
    StopSignal.of(head.run).request()
    assert run_attempt(head, StopSignal()) == (Reason.INTERRUPTED, "stopped on request")
    assert not is_run_locked(head.run)


@pytest.mark.parametrize("pods", [[], ["one"]])
def test_terminating_head_ends_at_once_when_no_worker_trains(
    head: PodFiles, workers: Workers, monkeypatch: pytest.MonkeyPatch, pods: list[str]
) -> None:
    end(head, Reason.INTERRUPTED, "stopped on request")
    monkeypatch.setattr(module, "_workers", lambda: pods)
    monkeypatch.setattr(
        module, "_run_on_workers", lambda task: [read_result()] if task is read_result else [False for _ in pods]
    )
    workers.meanwhile = lambda: wait_until(lambda: not is_run_locked(head.run))
    StopSignal.of(head.run).request()
    assert run_attempt(head, StopSignal()) == (Reason.INTERRUPTED, "stopped on request")


@pytest.mark.slow
def test_ray_is_not_left_while_another_thread_uses_it(
    head: PodFiles, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Ray would end the driver with exit code 1, and KubeRay would take the attempt for failed."""
    requests, left = threading.Event(), threading.Event()
    left_meanwhile: list[bool] = []

    def answer(task: object) -> list[Any]:
        if task is read_result:
            return [(Reason.INTERRUPTED, "stopped on request")]
        requests.set()
        left_meanwhile.append(left.wait(0.5))
        return [True]

    monkeypatch.setattr(module, "joined_ray", joined_ray)
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.shutdown", left.set)
    monkeypatch.setattr(module, "_run_on_workers", answer)
    workers.meanwhile = lambda: requests.wait(TIMEOUT_SECONDS)
    StopSignal.of(head.run).request()
    assert run_attempt(head, StopSignal()) == (Reason.INTERRUPTED, "stopped on request")
    assert left.is_set()
    assert left_meanwhile == [False]


def test_head_without_its_files_does_not_start(head: PodFiles, workers: Workers) -> None:
    (head.root / "etc/tensafe/job/place.json").unlink()
    with pytest.raises(PodFilesError, match=r"place\.json"):
        run_attempt(head, StopSignal())
    assert workers.group is None


def test_tasks_use_the_pod_that_they_run_in(head: PodFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(head.root))
    assert read_result() is None
    end(head, Reason.BUDGET_EXHAUSTED, "step 9 would exceed the target")
    assert read_result() == (Reason.BUDGET_EXHAUSTED, "step 9 would exceed the target")
    assert not StopSignal.of(head.run)
    assert not set_stop_flag()
    assert StopSignal.of(head.run)
    unlock = hold_run_lock(head.run)
    assert set_stop_flag()
    unlock()
    assert not set_stop_flag()


def test_pods_that_do_not_answer_delay_the_others_once_and_not_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 pods one answers and one has ended. The time limit passes once."""
    from ray.exceptions import GetTimeoutError, RayError

    waits: list[float] = []

    def wait(pending: list[int], timeout: float) -> tuple[list[int], list[int]]:
        answered = [number for number in pending if number in (100, 200)][:1]
        waits.append(0.0 if answered else timeout)
        return answered, [number for number in pending if number not in answered]

    def get(number: int, timeout: float = 0.0) -> int:
        if number == 100:
            raise RayError
        if number != 200:
            waits.append(timeout)
            raise GetTimeoutError
        return number

    numbers = iter(range(256))
    submitted = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: next(numbers)))
    monkeypatch.setattr("ray.remote", lambda **_: lambda task: submitted)
    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr(module, "_workers", lambda: ["ab" * 28] * 256)
    assert list(module._run_on_workers(read_result)) == [200]
    assert sum(waits) <= 60


@pytest.mark.slow
def test_importing_the_driver_imports_nothing_heavy() -> None:
    """Ray Train's controller imports the driver's modules again, one after the other, before a worker starts."""
    code = (
        "import sys\nimport tensorguard.runners.pod.attempt\n"
        "sys.exit(', '.join({'torch', 'ray', 'scipy', 'dp_accounting'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_driver_never_starts_a_ray_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of_init: dict[str, Any] = {}

    def init(**settings: Any) -> None:
        settings_of_init.update(settings)
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(RayUnavailable, match="tensafe run"), joined_ray(threading.Lock()):
        pass
    assert settings_of_init["address"] == "auto"
    assert settings_of_init["log_to_driver"] is False
