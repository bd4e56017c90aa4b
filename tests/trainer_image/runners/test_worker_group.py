"""The resources that a worker group requests, and what leaves a pod of a worker's failure. No Ray is started."""

from __future__ import annotations

import errno
import importlib.util
import pickle
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from tensafe_api.manifest.text import load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensorguard.aggregation.channel import AggregationError
from tensorguard.runners import worker_group as module
from tensorguard.runners.worker_group import RankFailed, WorkerGroup, WorkersFailed, run_workers
from tests.support.trainer.rank_harness import MANIFEST

RECORD = "Jane Doe has diabetes"


class Trainer:
    """Replaces Ray Train: calls the function once, as rank 0 would, and fails as Ray Train does."""

    settings: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, function: Any, **settings: Any) -> None:
        Trainer.settings = settings
        self._function = function

    def fit(self) -> None:
        try:
            self._function(Trainer.settings["train_loop_config"])
        except Exception as error:
            lost = RuntimeError("Connection closed by peer")
            failures = {0: RankFailed(Reason.INTERNAL_ERROR, type(lost).__name__), 1: pickle.loads(pickle.dumps(error))}
            raise WorkerGroupError("see above", failures) from None


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    monkeypatch.setattr("ray.train.v2.api.data_parallel_trainer.DataParallelTrainer", Trainer)
    monkeypatch.setattr("tensorguard.runners.rendezvous.process_group", lambda *_: nullcontext())
    monkeypatch.setattr(module, "_wait_for_resources", lambda group, seconds: None)
    return Trainer


def test_worker_group_requests_the_resources_of_the_job(trainer: type[Trainer], tmp_path: Path) -> None:
    text = MANIFEST.replace("MODEL", "/m").replace("CHECKPOINTS", "/c")
    job, _ = resolve_job(load_manifest(text, ("spec.cluster.worker.cpus=500m", "spec.retry.maxRestarts=4")))
    run_workers(lambda values: None, {"a": 1}, WorkerGroup.of(job, one_per_node=True), tmp_path / "ray")
    scaling, run = trainer.settings["scaling_config"], trainer.settings["run_config"]
    assert (scaling.num_workers, scaling.resources_per_worker) == (2, {"CPU": 0.5})
    assert scaling.placement_strategy == "STRICT_SPREAD"  # one rank, one pod, one trust domain
    assert run.failure_config.max_failures == 0  # this module restarts the workers
    assert trainer.settings["train_loop_config"] == {"a": 1}


def test_each_gpu_of_a_pod_gets_a_rank_with_a_part_of_the_cpus(trainer: type[Trainer], tmp_path: Path) -> None:
    """Ray fills each pod with as many ranks as it has GPUs."""
    text = MANIFEST.replace("MODEL", "/m").replace("CHECKPOINTS", "/c")
    overrides = ("spec.cluster.worker={gpus: 4, cpus: 10}", "spec.cluster.workers=3")
    job, _ = resolve_job(load_manifest(text, overrides))
    run_workers(lambda values: None, {}, WorkerGroup.of(job, one_per_node=True), tmp_path / "ray")
    scaling = trainer.settings["scaling_config"]
    assert (scaling.num_workers, scaling.resources_per_worker) == (12, {"CPU": 2.5, "GPU": 1})
    assert scaling.placement_strategy == "PACK"


def test_on_one_machine_workers_may_share_a_node(trainer: type[Trainer], tmp_path: Path) -> None:
    run_workers(lambda values: None, {}, WorkerGroup(2, 1, 0, 0), tmp_path / "ray")
    assert trainer.settings["scaling_config"].placement_strategy == "PACK"


def failing(values: dict[str, Any]) -> None:
    try:
        raise KeyError(RECORD)
    except KeyError:
        raise values["error"] from None


def test_message_of_a_worker_exception_is_not_passed_on(trainer: type[Trainer], tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed) as caught:
        run_workers(failing, {"error": ValueError(RECORD)}, WorkerGroup(2, 1, 0, 3), tmp_path / "ray")
    assert caught.value.reason is Reason.WORKER_LOST
    assert "after 3 restarts" in str(caught.value)
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerGroupError)
    failure = cause.worker_failures[1]
    assert isinstance(failure, RankFailed)
    assert RECORD not in repr(failure) + str(caught.value)


def import_broken_module(values: dict[str, Any]) -> None:
    values["starts"].append(values.get("last_failure"))
    values["module"].write_text(f"import sys\n\nrecord = {RECORD!r}\n{values['line']}\n")
    importlib.util.spec_from_file_location("broken", values["module"]).loader.exec_module(ModuleType("broken"))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' ({}, line 4)"),
        ("raise ValueError(record)", "ValueError ({}, line 4)"),
        ("sys.exit(record)", "SystemExit ({}, line 4)"),
        ("record = = 1", "SyntaxError ({}, line 4)"),
    ],
)
def test_failed_import_is_named_and_not_tried_again(
    trainer: type[Trainer], tmp_path: Path, line: str, sentence: str
) -> None:
    starts: list[str | None] = []
    module = tmp_path / "broken.py"
    values = {"starts": starts, "module": module, "line": line}
    with pytest.raises(WorkersFailed) as caught:
        run_workers(import_broken_module, values, WorkerGroup(1, 1, 0, 5), tmp_path / "ray")
    assert str(caught.value) == f"the workers failed: {sentence.format(module)}; fix the cause, and resume"
    assert caught.value.reason is Reason.WORKER_LOST
    assert starts == [None]


def test_full_disk_ends_the_attempt_without_a_restart(trainer: type[Trainer], tmp_path: Path) -> None:
    """Each restart would charge a step again."""
    error = OSError(errno.ENOSPC, "No space left on device", "/runs/a/events.jsonl")
    with pytest.raises(WorkersFailed) as caught:
        run_workers(failing, {"error": error}, WorkerGroup(2, 1, 0, 5), tmp_path / "ray")
    assert caught.value.reason is Reason.DISK_FULL
    assert str(caught.value) == "no space left on device in /runs/a: free space there, and resume"


def test_next_incarnation_knows_how_the_last_one_failed(trainer: type[Trainer], tmp_path: Path) -> None:
    found: list[str] = []

    def fails_twice(values: dict[str, Any]) -> None:
        found.append(values.get("last_failure", ""))
        if len(found) < 3:
            raise AggregationError(f"the workers disagreed on step {len(found)}")

    run_workers(fails_twice, {}, WorkerGroup(1, 1, 0, 5), tmp_path / "ray")
    assert found == ["", "the workers disagreed on step 1", "the workers disagreed on step 2"]


@pytest.mark.parametrize(
    ("exit_type", "log", "sentence"),
    [
        ("SYSTEM_ERROR", "", "worker 1 was killed, or ended its process, without an error (SYSTEM_ERROR): often"),
        ("SYSTEM_ERROR", f"*** SIGSEGV received at time=1\n{RECORD}", "worker 1 crashed with SIGSEGV"),
        ("NODE_OUT_OF_MEMORY", "", "raise spec.cluster.worker.memory"),
        (None, "", "worker 1 could not be reached (WorkerHealthCheckFailedError)"),
    ],
)
def test_death_of_a_worker_is_described_without_its_output(
    trainer: type[Trainer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_type: str | None,
    log: str,
    sentence: str,
) -> None:
    """Ray's message names the worker's log, and explains the end of its process."""
    (tmp_path / "train").mkdir()
    (tmp_path / "worker-ab12-01000000-77.err").write_text(log)
    named = f"log_file_path='{tmp_path}/train/ray-train-app-worker-ab12.log'"
    death = f"{RECORD} The actor is dead." + (f" Worker exit type: {exit_type} Worker exit detail" if exit_type else "")

    def fit(trainer: Trainer) -> None:
        dead = WorkerHealthCheckFailedError(named, Exception(death))
        raise WorkerGroupError("see above", {0: RankFailed(Reason.INTERNAL_ERROR, "RuntimeError"), 1: dead})

    monkeypatch.setattr(Trainer, "fit", fit)
    with pytest.raises(WorkersFailed) as caught:
        run_workers(failing, {}, WorkerGroup(2, 1, 0, 1), tmp_path / "ray")
    assert caught.value.reason is Reason.WORKER_LOST
    assert sentence in str(caught.value)
    assert RECORD not in str(caught.value)


def test_failure_of_ray_before_the_workers_start_is_named(
    trainer: type[Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(trainer: Trainer) -> None:
        raise ControllerError(ModuleNotFoundError("No module named 'tensorguard'"))

    monkeypatch.setattr(Trainer, "fit", fit)
    with pytest.raises(WorkersFailed, match="the workers failed: ModuleNotFoundError: No module named 'tensorguard'"):
        run_workers(failing, {}, WorkerGroup(2, 1, 0, 5), tmp_path / "ray")


def test_reported_failure_wins_over_a_lost_connection_to_a_peer(trainer: type[Trainer], tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed, match="the workers disagreed on step 4") as caught:
        run_workers(
            failing,
            {"error": AggregationError("the workers disagreed on step 4")},
            WorkerGroup(2, 1, 0, 3),
            tmp_path / "ray",
        )
    assert caught.value.reason is Reason.AGGREGATION_FAILED
