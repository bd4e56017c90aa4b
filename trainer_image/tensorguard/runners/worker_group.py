"""Runs the workers of one attempt under Ray Train, and restarts all of them when one fails.

In come the function of each worker, the number of workers and the resources of each. The call returns when the attempt
has ended; the workers report the result themselves, in the run log. This is the same on a laptop and in a cluster, with
one difference: in a cluster each worker runs in its own pod. No worker runs in the head pod, which offers no CPU.

Ray sends an exception of a worker to its controller and writes it to its logs. So the exception is replaced first by
`RankFailed`, which quotes no record; the traceback stays in a file of the worker.

The restarts are counted here and not by Ray Train, which would also restart workers that fail in the same way again.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.backoff import RETRY_SECONDS
from tensorguard.runners.core_dumps import switch_off_core_dumps
from tensorguard.runners.preflight import cpus_per_rank
from tensorguard.training.collective_errors import RAY_OUT_OF_MEMORY, describe_error, would_fail_again

PLACEMENT_SECONDS, SPREAD_PLACEMENT_SECONDS = 300, 1800
"""How long to wait until the cluster has the resources for all workers: on one machine, and where each worker has its
own pod. A pod may have to wait for a node, for as long as KubeRay waits for the first pods of an attempt."""
COLLECTIVE_TIMEOUT_SECONDS = 2 * RETRY_SECONDS + 120
"""How long ranks wait for each other. Rank 0 may be waiting for the checkpoint storage and then for the ledger."""
RankFunction = Callable[[dict[str, Any]], None]
"""The function that each worker calls inside the process group, with plain values that Ray sends to it. It must be
defined at the top level of a module."""


class RayTimeoutError(TimeoutError):
    """The cluster did not have the resources for all workers in time. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.RESOURCES_MISSING


class RankFailed(Exception):
    """One worker failed. It carries a reason, a sentence without records, and whether a restart would not help."""

    def __init__(self, reason: Reason, sentence: str, final: bool = False) -> None:
        super().__init__(reason, sentence, final)
        self.reason, self.sentence, self.final = reason, sentence, final


class WorkersFailed(RuntimeError):
    """The workers failed once more than `max_restarts` allows, or in a way that a restart does not fix.

    Ray's own message is not repeated, because it quotes the exceptions of the workers. `reason` is that of the last
    failure if a worker reported one, else WorkerLost.
    """

    def __init__(self, restarts: int, failure: RankFailed) -> None:
        after = f", after {restarts} restarts" if restarts else ""
        text = f"the workers failed{after}: {failure.sentence}; fix the cause, and resume"
        super().__init__(failure.sentence if failure.reason is Reason.DISK_FULL else text)
        self.reason = Reason.WORKER_LOST if failure.reason is Reason.INTERNAL_ERROR else failure.reason


@dataclass(frozen=True)
class WorkerGroup:
    """The number of ranks, which Ray Train calls workers, the resources of each, and how often all may be restarted.

    A worker of the job with several GPUs has one rank for each. Ray Train numbers the ranks node by node, so those of a
    worker are consecutive.
    """

    workers: int
    cpus: float
    gpus: int
    max_restarts: int
    one_per_node: bool = False
    """Place each rank on its own node of Ray, which is a pod."""
    timeout: float | None = None
    """Seconds that workers may wait for resources and for each other; None: the defaults of this module."""
    ranks_per_worker: int = 1
    """The number of ranks of each worker of the job."""

    @classmethod
    def of(cls, job: TenSafeTrainingJob, *, one_per_node: bool = False, timeout: float | None = None) -> WorkerGroup:
        """The worker group of a job. `one_per_node`: each worker of the job is a pod."""
        cluster = job.spec.cluster
        restarts = job.spec.retry.max_restarts
        alone = one_per_node and cluster.ranks_per_worker == 1  # otherwise the GPUs of a pod limit its ranks
        return cls(
            cluster.ranks,
            cpus_per_rank(job),
            min(1, cluster.worker.gpus),
            restarts,
            alone,
            timeout,
            cluster.ranks_per_worker,
        )

    @property
    def resources(self) -> dict[str, float]:
        """The resources of one worker, with Ray's names."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    @property
    def strategy(self) -> str:
        """Ray's placement strategy."""
        return "STRICT_SPREAD" if self.one_per_node else "PACK"


def run_workers(function: RankFunction, values: Mapping[str, Any], group: WorkerGroup, storage: Path) -> None:
    """Run one attempt on the Ray cluster that this process has joined, and wait for its end.

    Args:
        function: called by each worker, with `values`.
        values: plain values, the same for each worker. After a failure, `last_failure` is added: a sentence.
        storage: folder for Ray Train's files; removed first if it exists.

    Raises:
        RayTimeoutError: the cluster does not have the resources for the workers within the group's timeout.
        WorkersFailed: the workers failed after `max_restarts` restarts of the whole group, or cannot be restarted.
    """
    for restarts in range(group.max_restarts + 1):
        try:
            _run_once(function, values, group, storage)
            return
        except RankFailed as failure:
            if failure.final or restarts == group.max_restarts:
                raise WorkersFailed(restarts, failure) from failure.__cause__
            values = {**values, "last_failure": failure.sentence}


def _run_once(function: RankFunction, values: Mapping[str, Any], group: WorkerGroup, storage: Path) -> None:
    """Run one incarnation. Raises RankFailed, with the failure that explains most, if a worker has failed."""
    from pyarrow.fs import LocalFileSystem
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    backend = "nccl" if group.gpus else "gloo"
    seconds = group.timeout or COLLECTIVE_TIMEOUT_SECONDS
    _wait_for_resources(group, group.timeout or (SPREAD_PLACEMENT_SECONDS if group.one_per_node else PLACEMENT_SECONDS))
    shutil.rmtree(storage, ignore_errors=True)  # Ray would resume from its own record of a killed run

    def run_rank(values: dict[str, Any]) -> None:
        from tensorguard.runners.rendezvous import process_group

        switch_off_core_dumps()  # in a pod this process is a child of Ray, which KubeRay started
        try:
            with process_group(backend, seconds, group.ranks_per_worker):
                function(values)
        except (Exception, SystemExit) as error:
            raise RankFailed(*describe_error(error), final=would_fail_again(error)) from None

    trainer = DataParallelTrainer(
        run_rank,
        train_loop_config=dict(values),
        scaling_config=ScalingConfig(
            num_workers=group.workers,
            use_gpu=group.gpus > 0,
            resources_per_worker=group.resources,
            placement_strategy=group.strategy,
        ),
        run_config=RunConfig(
            name="attempt",
            storage_path=str(storage),
            storage_filesystem=LocalFileSystem(),  # otherwise the path is read as a URI
            failure_config=FailureConfig(max_failures=0),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise _most_informative(error) from error


def configure_ray() -> None:
    """Configure Ray before it starts or is joined: it sends no usage statistics, logs nothing private, and none of its
    processes writes a core dump.
    """
    switch_off_core_dumps()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES", "1")  # the default of Ray Train for PyTorch
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)


def init_ray(**settings: Any) -> None:
    """`ray.init` with these settings, for workers that import nothing from the folders of this process.

    Ray puts the working directory of a driver, and the folder of its script, first in `sys.path` of all workers. A file
    peft.py there would run in place of the library, in a process that holds the job key and the records. A process that
    called `ray.init` before has given its folders to its workers itself, and Ray cannot take them back.
    """
    import ray
    from ray.job_config import JobConfig

    class WithoutFolders(JobConfig):
        def _serialize(self) -> str:
            self._py_driver_sys_path.clear()
            return super()._serialize()

    ray.init(job_config=WithoutFolders(), log_to_driver=False, logging_level=logging.ERROR, **settings)


def _most_informative(error: Exception) -> RankFailed:
    """The failure that explains most. A peer of the failed worker reports only that a connection was lost.

    Args:
        error: of Ray Train: one that a worker raised, or one that Ray raised while it started the workers.
    """
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    if not failures:
        reported = getattr(error, "controller_failure", error)
        cause = getattr(reported, "cause", None) or reported
        return RankFailed(*describe_error(cause), final=would_fail_again(cause))
    known = [_failure_of(rank, failures[rank]) for rank in sorted(failures)]
    return min(known, key=lambda failure: (not failure.final, failure.reason is Reason.INTERNAL_ERROR))


def _failure_of(rank: int, error: Exception) -> RankFailed:
    """The failure of one worker. Of one whose process has died, Ray knows at best the kind of its end."""
    if isinstance(error, RankFailed):
        return error
    text = str(error)
    kind = re.search(r"Worker exit type: (\w+)", text)
    if kind is None:
        return RankFailed(Reason.WORKER_LOST, f"worker {rank} could not be reached ({type(error).__name__})")
    if kind[1] == "NODE_OUT_OF_MEMORY":
        return RankFailed(Reason.WORKER_LOST, RAY_OUT_OF_MEMORY)
    signal = _signal_in_log(text)
    if signal is not None:
        return RankFailed(Reason.WORKER_LOST, f"worker {rank} crashed with {signal}")
    return RankFailed(
        Reason.WORKER_LOST,
        f"worker {rank} was killed, or ended its process, without an error ({kind[1]}): often its machine has too "
        "little memory",
    )


def _signal_in_log(text: str) -> str | None:
    """The signal with which a worker of this machine has crashed; None where its log has none, as after SIGKILL.

    Args:
        text: of Ray's error, which names a log of the worker.
    """
    named = re.search(r"log_file_path='(.*)/train/ray-train-app-worker-(\w+)\.log'", text)
    for path in Path(named[1]).glob(f"worker-{named[2]}-*.err") if named else ():
        if found := re.search(r"\*\*\* (SIG[A-Z]+) received", path.read_text(errors="replace")):
            return found[1]
    return None


def _wait_for_resources(group: WorkerGroup, seconds: float) -> None:
    """Wait until the cluster has the resources for all workers at the same time.

    Without this, Ray Train would retry without end.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    placement = placement_group([group.resources] * group.workers, strategy=group.strategy)
    try:
        if not placement.wait(seconds):
            free = ray.available_resources()
            raise RayTimeoutError(
                f"Ray did not have the resources for {group.workers} workers with {_text(group.resources)} each"
                f"{', one on each node,' if group.one_per_node else ''} within {seconds:g} seconds "
                f"(free now: {_text({name: free.get(name, 0.0) for name in group.resources})}); "
                "lower spec.cluster.workers or spec.cluster.worker, or wait until the cluster has more"
            )
    finally:
        remove_placement_group(placement)


def _text(resources: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
