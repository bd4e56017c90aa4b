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
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tensafe_api.reasons import Reason
from tensorguard.runners.worker_group import configure_ray
from tensorguard.training.config import WorkerConfig

_SESSION_NOTE = ".ray-session"
_PREFIX = "tensafe-"
_START_TRIES = 3
_TOO_SLOW = "timed out during startup"
"""What Ray says where its processes take longer than the half minute that is written into it."""
_OBJECT_STORE_BYTES = 512 * 2**20


class RayNotStarted(RuntimeError):
    """Ray gives its own processes half a minute to start, and they took longer, each time."""

    reason: ClassVar[Reason] = Reason.RESOURCES_MISSING

    def __init__(self) -> None:
        super().__init__(
            f"Ray did not start within half a minute, {_START_TRIES} times; this machine is busy with something else: "
            "wait for that, and run it again"
        )


@contextmanager
def local_ray(run_directory: Path, *, cpus: int, gpus: int) -> Iterator[None]:
    """A Ray cluster of `cpus` and `gpus` inside the with block; joins the one that the caller has started, where there
    is one.
    """
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    configure_ray()
    import ray

    from tensorguard.data.read import silence_ray_data

    silence_ray_data()

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


def _remove_session(name: str) -> None:
    """Remove the session that a killed run left, and nothing else, whatever the note in a run's folder says: only a
    folder of this name right in the machine's temporary one, made by this user.
    """
    session = Path(tempfile.gettempdir()) / Path(name).name
    ours = session.name.startswith(_PREFIX) and session.is_dir() and not session.is_symlink()
    if ours and session.stat().st_uid == os.getuid():
        shutil.rmtree(session, ignore_errors=True)


def run_local_rank(loop: dict[str, Any]) -> None:
    """What Ray Train calls on each worker of this machine, once the process group stands."""
    from ray.train.torch import get_device

    from tensorguard.aggregation.channel import ProcessGroupChannel
    from tensorguard.training.worker import train

    device = get_device()
    train(WorkerConfig.unpack(loop), ProcessGroupChannel(device), device)
