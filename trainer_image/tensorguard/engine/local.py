"""A Ray cluster for one run on this machine, made to leave no trace.

Ray's session folder holds logs, and Ray Data writes exact row counts into them, which are private: so the session lives
in a folder of its own that nobody else can read, and goes when the run ends. A run that was killed leaves it behind;
the next one in the same place removes it, since its path is noted in the run's folder. Ray's authentication token is
this process's own, and is not written to the user's home.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tensafe_api.reasons import Reason
from tensorguard.engine.config import ERRORS, WorkerConfig
from tensorguard.engine.folder import WORK

_SESSION_NOTE = ".ray-session"
_PREFIX = "tensafe-"
_START_TRIES = 3
_TOO_SLOW = "timed out during startup"
"""What Ray says where its processes take longer than the half minute that is written into it."""
_OBJECT_STORE_BYTES = 512 * 2**20
COLLECTIVE_TIMEOUT_SECONDS = 300


class RayTimeoutError(TimeoutError):
    """The cluster had no room for all workers within the time that was given. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.RESOURCES_MISSING


class RayNotStarted(RuntimeError):
    """Ray gives its own processes half a minute to start, and they took longer, each time."""

    reason: ClassVar[Reason] = Reason.RESOURCES_MISSING

    def __init__(self) -> None:
        super().__init__(
            f"Ray did not start within half a minute, {_START_TRIES} times; this machine is busy with something else: "
            "wait for that, and run it again"
        )


class WorkersFailed(RuntimeError):
    """The workers failed once more than they may be restarted. Ray's own words are not repeated: they quote the
    workers' exceptions, which may quote records.
    """

    reason: ClassVar[Reason] = Reason.WORKER_LOST

    def __init__(self, restarts: int) -> None:
        super().__init__(
            f"the workers failed, after {restarts} restarts; see {ERRORS.format(who='rankN')} in the run's folder for "
            "why, mend that, and resume"
        )


@contextmanager
def local_ray(run_directory: Path, *, cpus: int, gpus: int) -> Iterator[None]:
    """A Ray cluster of `cpus` and `gpus` inside the with block; joins the one that the caller has started, where there
    is one.
    """
    _environment()
    import ray

    from tensorguard.data.read import quiet

    quiet()

    if ray.is_initialized():
        yield
        return
    note = run_directory / _SESSION_NOTE
    if note.exists():
        _remove_session(note.read_text())
    # Not in the run's folder: Ray's sockets lie in its session, and a socket's path has at most 107 characters. And not
    # in what we give to Ray itself: it opens its folders to everybody, so they lie in one that it does not know of.
    session = Path(tempfile.mkdtemp(prefix=_PREFIX))
    note.write_text(session.name)
    try:
        for tries in range(1, _START_TRIES + 1):
            try:
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    num_gpus=gpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=str(session / f"r{tries}"),
                )
                break
            except Exception as error:
                if _TOO_SLOW not in str(error):
                    raise
                ray.shutdown()
                if tries == _START_TRIES:
                    raise RayNotStarted from error
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(session, ignore_errors=True)
        note.unlink(missing_ok=True)


def keep_sigterm() -> None:
    """Put Python's own SIGTERM handler back, where there is one; does nothing off the main thread.

    When Ray starts it sets a handler in C++, which dumps a stack, calls Python's, and aborts the process three seconds
    later: too soon to seal a checkpoint.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _remove_session(name: str) -> None:
    """Remove the session that a killed run left, and nothing else, whatever the note in a run's folder says: only a
    folder of this name right in the machine's temporary one, made by this user.
    """
    session = Path(tempfile.gettempdir()) / Path(name).name
    ours = session.name.startswith(_PREFIX) and session.is_dir() and not session.is_symlink()
    if ours and session.stat().st_uid == os.getuid():
        shutil.rmtree(session, ignore_errors=True)


def fit(
    config: WorkerConfig, *, workers: int, cpus: float, gpus: int, max_restarts: int, timeout: float | None
) -> None:
    """Run one attempt on `workers` Ray workers, and wait for its end.

    Raises:
        RayTimeoutError: where there is no room for the workers within `timeout`.
        WorkersFailed: after `max_restarts` restarts of the whole group.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    resources = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    seconds = timeout or COLLECTIVE_TIMEOUT_SECONDS
    _wait_for_room([resources] * workers, seconds)
    storage = config.directory / WORK / "ray-train"
    shutil.rmtree(storage, ignore_errors=True)  # Ray would go on from its own record of a killed run
    trainer = TorchTrainer(
        _worker_main,
        train_loop_config={"config": config.pack()},
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=gpus > 0,
            resources_per_worker=resources,
        ),
        run_config=RunConfig(
            name="attempt", storage_path=str(storage), failure_config=FailureConfig(max_failures=max_restarts)
        ),
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=int(seconds)),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise WorkersFailed(max_restarts) from error


def _wait_for_room(bundles: list[dict[str, float]], seconds: float) -> None:
    """Wait until all workers fit into the cluster at once: left to itself, Ray Train would ask again for ever."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    room = placement_group(bundles)
    try:
        if not room.wait(seconds):
            free = ray.available_resources()
            raise RayTimeoutError(
                f"Ray had no room for {len(bundles)} workers with {_words(bundles[0])} each within {seconds:g} seconds "
                f"(free now: {_words({name: free.get(name, 0.0) for name in bundles[0]})}); "
                "lower spec.cluster.workers or spec.cluster.worker, or wait until the cluster is free"
            )
    finally:
        remove_placement_group(room)


def _words(resources: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _worker_main(loop: dict[str, Any]) -> None:
    """What Ray Train calls on each worker, once the process group stands."""
    from ray.train.torch import get_device

    from tensorguard.aggregation.channel import ProcessGroup
    from tensorguard.engine.worker import train

    device = get_device()
    train(WorkerConfig.unpack(loop["config"]), ProcessGroup(device), device)


def _environment() -> None:
    """Before Ray starts: nothing is sent home, nothing private is logged, and nobody else may connect."""
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
