"""The group of workers that Ray Train starts for one attempt, and starts again when one of them fails.

In: what each worker is to call, how many there are and what each needs. Out: nothing but the end of the attempt; the
workers tell how it ended in their own way. The same on a laptop and in a cluster, but for one thing: in a cluster each
worker has a pod of its own, and the head, which offers no CPU, gets none.

What a worker raises travels to Ray's controller and into its logs, so it is made plain first (`RankFailed`): the
traceback, which may quote records, stays in a file beside the worker.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.backoff import RETRY_SECONDS
from tensorguard.runners.preflight import cpus_per_worker
from tensorguard.training.collective_errors import describe_error
from tensorguard.training.config import TRACEBACKS

PLACEMENT_SECONDS, SPREAD_PLACEMENT_SECONDS = 300, 1800
"""How long there may be no room for all workers. Pods of their own may wait for a node: as long as KubeRay is given for
an attempt's first ones."""
COLLECTIVE_TIMEOUT_SECONDS = 2 * RETRY_SECONDS + 120
"""How long ranks wait for each other: rank 0 may be waiting for the store of checkpoints, and then for the ledger."""
RankFunction = Callable[[dict[str, Any]], None]
"""What each worker calls in the process group, with plain values that travel to it. Defined at the top of a module."""


class RayTimeoutError(TimeoutError):
    """The cluster had no room for all workers within the time that was given. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.RESOURCES_MISSING


class RankFailed(Exception):
    """One worker failed, and a restart may mend it: the reason and a sentence without records, and nothing else."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(reason, sentence)
        self.reason, self.sentence = reason, sentence


class WorkersFailed(RuntimeError):
    """The workers failed once more than they may be restarted. Ray's own words are not repeated: they quote the
    workers' exceptions. `reason` is that of the last failure where a worker could tell one, else WorkerLost.
    """

    def __init__(self, restarts: int, failure: RankFailed | None = None) -> None:
        mend = f"see {TRACEBACKS.format(process='rankN')} in the run's folder for why, mend that, and resume"
        why = f" ({failure.sentence})" if failure else ""
        super().__init__(f"the workers failed, after {restarts} restarts{why}; {mend}")
        self.reason = failure.reason if failure else Reason.WORKER_LOST


@dataclass(frozen=True)
class WorkerGroup:
    """How many workers there are, what each needs, and how often all of them may be started again."""

    workers: int
    cpus: float
    gpus: int
    max_restarts: int
    one_per_node: bool = False
    """Each worker on a node of its own."""
    timeout: float | None = None
    """Seconds that workers may wait for each other."""

    @classmethod
    def of(cls, job: TenSafeTrainingJob, *, one_per_node: bool = False, timeout: float | None = None) -> WorkerGroup:
        """The group that a job asks for."""
        cluster = job.spec.cluster
        restarts = job.spec.retry.max_restarts
        return cls(cluster.workers, cpus_per_worker(job), cluster.worker.gpus, restarts, one_per_node, timeout)

    @property
    def resources(self) -> dict[str, float]:
        """What one worker needs, in Ray's words."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    @property
    def strategy(self) -> str:
        return "STRICT_SPREAD" if self.one_per_node else "PACK"


def run_workers(loop: RankFunction, values: Mapping[str, Any], group: WorkerGroup, storage: Path) -> None:
    """Run one attempt on the Ray that this process has joined, and wait for its end. `storage`: what Ray Train keeps.

    Raises:
        RayTimeoutError: where there is no room for the workers within the group's timeout.
        WorkersFailed: after `max_restarts` restarts of the whole group.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    backend = "nccl" if group.gpus else "gloo"
    seconds = group.timeout or COLLECTIVE_TIMEOUT_SECONDS
    _wait_for_room(group, group.timeout or (SPREAD_PLACEMENT_SECONDS if group.one_per_node else PLACEMENT_SECONDS))
    shutil.rmtree(storage, ignore_errors=True)  # Ray would go on from its own record of a killed run

    def contained(values: dict[str, Any]) -> None:
        from tensorguard.runners.rendezvous import process_group

        try:
            with process_group(backend, seconds):
                loop(values)
        except Exception as error:
            raise RankFailed(*describe_error(error)) from None

    trainer = DataParallelTrainer(
        contained,
        train_loop_config=dict(values),
        scaling_config=ScalingConfig(
            num_workers=group.workers,
            use_gpu=group.gpus > 0,
            resources_per_worker=group.resources,
            placement_strategy=group.strategy,
        ),
        run_config=RunConfig(
            name="attempt", storage_path=str(storage), failure_config=FailureConfig(max_failures=group.max_restarts)
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise WorkersFailed(group.max_restarts, _telling(error)) from error


def configure_ray() -> None:
    """Before Ray starts, or is joined: nothing is sent home, and nothing private is logged."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES", "1")  # as Ray Train has it for PyTorch
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _telling(error: Exception) -> RankFailed | None:
    """The failure that says most: a peer of the one that failed knows only that somebody is gone."""
    failures = getattr(error, "worker_failures", {})
    known = (failures[rank] for rank in sorted(failures) if isinstance(failures[rank], RankFailed))
    return next((failure for failure in known if failure.reason is not Reason.INTERNAL_ERROR), None)


def _wait_for_room(group: WorkerGroup, seconds: float) -> None:
    """Wait until all workers fit into the cluster at once: left to itself, Ray Train would ask again for ever."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    room = placement_group([group.resources] * group.workers, strategy=group.strategy)
    try:
        if not room.wait(seconds):
            free = ray.available_resources()
            raise RayTimeoutError(
                f"Ray had no room for {group.workers} workers with {_words(group.resources)} each"
                f"{', one on each node,' if group.one_per_node else ''} within {seconds:g} seconds "
                f"(free now: {_words({name: free.get(name, 0.0) for name in group.resources})}); "
                "lower spec.cluster.workers or spec.cluster.worker, or wait until the cluster is free"
            )
    finally:
        remove_placement_group(room)


def _words(resources: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
