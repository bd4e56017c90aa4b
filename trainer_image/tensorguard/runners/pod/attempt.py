"""One attempt of a job in a cluster, from the head pod: what `python -m tensorguard.cluster` calls.

    read the mounted job ─► join the Ray that KubeRay has started ─► train in the worker pods ─► ask them how it ended

The operator has resolved the job, made its ledger and counted the attempt; the worker pods read the data, hold the key
and write the ledger (`runners.pod.worker`). What is left for the driver is to have them started, and started again, by
Ray Train. It sees neither records nor keys, and has no way to the API server.

The workers' run folders lie in their pods. The driver reaches them by small tasks: one raises the stop flag there, one
reads how rank 0 said that the attempt ended. It keeps the head from going for as long as a worker has something to
seal, since nothing of Ray outlives the head.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

from tensafe_api.reasons import Reason
from tensorguard.runners.background import run_in_background
from tensorguard.runners.pod.pod_files import PodFiles
from tensorguard.runners.run_folder import RAY_TRAIN_FOLDER, WORK_FOLDER, hold_run_lock, is_run_locked
from tensorguard.runners.worker_group import WorkerGroup, configure_ray, run_workers
from tensorguard.training.collective_errors import describe_error
from tensorguard.training.config import RUN_LOG, TRACEBACKS, append_traceback
from tensorguard.training.run_log import Ended, RunLogReader
from tensorguard.training.stop_signal import StopSignal

AttemptResult = tuple[Reason, str]
"""How an attempt ended: the reason, and a sentence without records."""
_ASK_SECONDS, _ASK_AGAIN_SECONDS = 60.0, 5.0
T = TypeVar("T")


class RayUnavailable(RuntimeError):
    """There is no Ray to join. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.WORKER_LOST


def run_attempt(mounted: PodFiles, stop: StopSignal) -> AttemptResult:
    """Run one attempt until it ends, and say how. Call it on the main thread; `stop` may be raised by a signal.

    Raises:
        PodFilesError: where the head's own files do not say what to run.
    """
    job = mounted.job()
    _, attempt = mounted.place()
    ending: list[AttemptResult] = []
    ask_at = 0.0
    told_to_go = StopSignal.of(mounted.run)  # by the pod's preStop hook
    release = hold_run_lock(mounted.run)
    asking = threading.Lock()

    def work() -> None:
        try:
            with joined_ray(asking):
                run_workers(
                    pod_main, {}, WorkerGroup.of(job, one_per_node=True), mounted.run / WORK_FOLDER / RAY_TRAIN_FOLDER
                )
                ending.append(_told_end())
        except Exception as error:
            append_traceback(mounted.run / TRACEBACKS.format(process="driver"), attempt)
            ending.append(describe_error(error))

    def pass_stop_on() -> None:
        nonlocal ask_at
        if not (stop or told_to_go) or time.monotonic() < ask_at:
            return
        with asking, suppress(Exception):  # Ray is about to go
            asked, training = len(_workers()), list(_answers(raise_stop_flag))
            if len(training) == asked and not any(training):
                release()  # nothing is lost with the pod
        ask_at = time.monotonic() + _ASK_AGAIN_SECONDS  # workers that are started again know of nothing

    try:
        run_in_background(work, meanwhile=pass_stop_on)
    finally:
        release()
    return ending[0]


def pod_main(loop: dict[str, Any]) -> None:
    """`runners.pod.worker.run_pod_rank`, imported in the pod: the head has no use for what it needs."""
    from tensorguard.runners.pod.worker import run_pod_rank

    run_pod_rank(loop)


@contextmanager
def joined_ray(asking: threading.Lock) -> Iterator[None]:
    """The Ray of this pod inside the with block; none is ever started. While another thread holds `asking` it is not
    left: Ray ends the process of who calls it after that.
    """
    configure_ray()
    import ray

    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise RayUnavailable(
            f"there is no Ray to join here ({type(error).__name__}); this is the entrypoint of the operator's RayJobs, "
            "and a job on one's own machine is run by `tensafe run`"
        ) from error
    try:
        yield
    finally:
        with asking:
            ray.shutdown()


def raise_stop_flag() -> bool:
    """In a worker pod: ask its rank to stop, and with it all. Whether there is one that trains."""
    directory = PodFiles.here().run
    StopSignal.of(directory).request()
    return is_run_locked(directory)


def read_result() -> AttemptResult | None:
    """In a worker pod: how the attempt ended, where rank 0 was here."""
    ends = [event for event in RunLogReader(PodFiles.here().run / RUN_LOG).read() if isinstance(event, Ended)]
    return (Reason(ends[-1].reason), ends[-1].message) if ends else None


def _told_end() -> AttemptResult:
    lost = Reason.WORKER_LOST, "the workers ended without a word; see their logs"
    return next((told_there for told_there in _answers(read_result) if told_there is not None), lost)


def _answers(act: Callable[[], T]) -> Iterator[T]:
    """What `act` returns in each worker pod, of those that answer."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(act)
    strategies = [NodeAffinitySchedulingStrategy(node, soft=False) for node in _workers()]
    for answer in [task.options(scheduling_strategy=strategy).remote() for strategy in strategies]:
        with suppress(RayError):  # this pod has gone
            yield ray.get(answer, timeout=_ASK_SECONDS)


def _workers() -> list[str]:
    """The ids of the nodes that train: all that offer a CPU, which the head does not. None before Ray is joined."""
    import ray

    if not ray.is_initialized():
        return []
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
