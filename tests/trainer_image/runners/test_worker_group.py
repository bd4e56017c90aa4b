"""The resources that a worker group requests, and what leaves a pod of a worker's failure. No Ray is started."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ray.train import WorkerGroupError

from e2e.platform.trainer.rank_harness import MANIFEST
from tensafe_api.manifest import load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensorguard.aggregation.channel import AggregationError
from tensorguard.runners import worker_group as module
from tensorguard.runners.worker_group import RankFailed, WorkerGroup, WorkersFailed, run_workers

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
    assert run.failure_config.max_failures == 4
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


def test_reported_failure_wins_over_a_lost_connection_to_a_peer(trainer: type[Trainer], tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed, match="the workers disagreed on step 4") as caught:
        run_workers(
            failing,
            {"error": AggregationError("the workers disagreed on step 4")},
            WorkerGroup(2, 1, 0, 3),
            tmp_path / "ray",
        )
    assert caught.value.reason is Reason.AGGREGATION_FAILED
