"""Runs one attempt of a job in a cluster, from the head pod. `python -m tensorguard.driver` calls `run_attempt`.

    read the mounted job ─► join the Ray that KubeRay has started ─► train in the worker pods ─► read how it ended

The operator has resolved the job, created its ledger and numbered the attempt. The worker pods read the data, hold the
job key and write the ledger (`runners.pod.worker`). The driver here only starts them, and restarts them, through Ray
Train. It sees neither records nor keys, and cannot reach the API server.

The run folders of the workers are in their pods. The driver reaches them by small Ray tasks: one sets the stop flag
there, one reads how rank 0 logged the end of the attempt. Nothing of Ray survives the head pod. So the driver delays
the termination of the head pod while a worker may still have a checkpoint to write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

from tensafe_api.reasons import Reason
from tensorguard.runners.background import run_in_background
from tensorguard.runners.pod.pod_files import PodFiles
from tensorguard.runners.run_folder import RAY_TRAIN_FOLDER, WORK_FOLDER, hold_run_lock, is_run_locked
from tensorguard.runners.worker_group import WorkerGroup, configure_ray, init_ray, run_workers
from tensorguard.training.collective_errors import describe_error
from tensorguard.training.config import RUN_LOG, TRACEBACKS, append_traceback
from tensorguard.training.run_log import Ended, RunLogReader
from tensorguard.training.stop_signal import StopSignal

AttemptResult = tuple[Reason, str]
"""How an attempt ended: the reason, and a sentence without records."""
_ANSWER_SECONDS, _STOP_INTERVAL_SECONDS = 60.0, 5.0
T = TypeVar("T")


class RayUnavailable(RuntimeError):
    """There is no Ray cluster to join. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.WORKER_LOST


def run_attempt(files: PodFiles, stop: StopSignal) -> AttemptResult:
    """Run one attempt until it ends, and return how it ended. Call it on the main thread; a signal may set `stop`.

    Raises:
        PodFilesError: the files of the head pod do not state what to run.
    """
    job = files.job()
    _, attempt = files.ledger_location()
    results: list[AttemptResult] = []
    next_stop = 0.0
    stop_of_hook = StopSignal.of(files.run)  # set by the pod's preStop hook
    unlock = hold_run_lock(files.run)
    using_ray = threading.Lock()

    def work() -> None:
        try:
            with joined_ray(using_ray):
                group = WorkerGroup.of(job, one_per_node=True)
                run_workers(worker_function, {}, group, files.run / WORK_FOLDER / RAY_TRAIN_FOLDER)
                results.append(_result_of_workers())
        except Exception as error:
            reason, sentence = describe_error(error)
            kept = append_traceback(files.run / TRACEBACKS.format(process="driver"), attempt)
            results.append((reason, sentence + (kept if reason is Reason.INTERNAL_ERROR else "")))

    def forward_stop() -> None:
        nonlocal next_stop
        if not (stop or stop_of_hook) or time.monotonic() < next_stop:
            return
        with using_ray, suppress(Exception):  # Ray may be about to end
            workers, training = len(_workers()), list(_run_on_workers(set_stop_flag))
            if len(training) == workers and not any(training):
                unlock()  # no worker has a checkpoint to write, so the pod may end
        next_stop = time.monotonic() + _STOP_INTERVAL_SECONDS  # again, because restarted workers have a new folder

    try:
        run_in_background(work, meanwhile=forward_stop)
    finally:
        unlock()
    return results[0]


def worker_function(values: dict[str, Any]) -> None:
    """Call `runners.pod.worker.run_pod_rank`. The worker pod imports it, because the head must not load PyTorch."""
    from tensorguard.runners.pod.worker import run_pod_rank

    run_pod_rank(values)


@contextmanager
def joined_ray(using_ray: threading.Lock) -> Iterator[None]:
    """Join the Ray cluster of this pod for the with block. It never starts one.

    It does not leave the cluster while another thread holds `using_ray`: a call of Ray after that would end the
    process.
    """
    configure_ray()
    import ray

    try:
        init_ray(address="auto")
    except Exception as error:
        raise RayUnavailable(
            f"there is no Ray cluster to join ({type(error).__name__}); this is the entrypoint of the operator's "
            "RayJobs; use `tensafe run` to run a job on your own machine"
        ) from error
    try:
        yield
    finally:
        with using_ray:
            ray.shutdown()


def set_stop_flag() -> bool:
    """In a worker pod: request a stop of its rank, which stops all ranks. Returns whether a rank trains here."""
    directory = PodFiles.here().run
    StopSignal.of(directory).request()
    return is_run_locked(directory)


def read_result() -> AttemptResult | None:
    """In a worker pod: how the attempt ended, if rank 0 ran here; else None."""
    ends = [record for record in RunLogReader(PodFiles.here().run / RUN_LOG).read() if isinstance(record, Ended)]
    return (Reason(ends[-1].reason), ends[-1].message) if ends else None


def _result_of_workers() -> AttemptResult:
    lost = Reason.WORKER_LOST, "the workers ended without logging a reason; see their logs"
    return next((result for result in _run_on_workers(read_result) if result is not None), lost)


def _run_on_workers(task: Callable[[], T]) -> Iterator[T]:
    """The results of `task` in the worker pods, the first answer first. A pod that does not answer in time gives none,
    and all pods have the same time.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(num_cpus=0, max_retries=0)(task)
    strategies = [NodeAffinitySchedulingStrategy(node, soft=False) for node in _workers()]
    pending = [remote.options(scheduling_strategy=strategy).remote() for strategy in strategies]
    deadline = time.monotonic() + _ANSWER_SECONDS
    while pending:
        answered, pending = ray.wait(pending, timeout=max(0.0, deadline - time.monotonic()))
        if not answered:
            return
        with suppress(RayError):  # this pod has ended
            yield ray.get(answered[0])


def _workers() -> list[str]:
    """Ids of the nodes that train: all that offer a CPU, which the head does not. Empty before Ray is joined."""
    import ray

    if not ray.is_initialized():
        return []
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
