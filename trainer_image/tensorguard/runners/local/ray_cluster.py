"""Starts a Ray cluster on this machine for one run, and removes everything that it wrote.

Ray's session folder holds logs, and Ray Data writes exact row counts into them, which are private. So the session is in
its own folder, which no other user can read, and is removed when the run ends. A killed run leaves its session behind.
The next run in the same run folder removes it, because its name is noted there. Ray's authentication token belongs to
this process only, and is not written to the user's home.
"""

from __future__ import annotations

import errno
import gc
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tensafe_api.reasons import Reason
from tensorguard.disk_full import names_file
from tensorguard.runners.nodes.node_files import NodeFiles
from tensorguard.runners.worker_group import configure_ray, init_ray
from tensorguard.training.config import WorkerConfig

_SESSION_NOTE = ".ray-session"
_PREFIX = "tensafe-"
_START_TRIES = 3
_TOO_SLOW = "timed out during startup"
"""Part of Ray's message when its processes take longer to start than the half minute that Ray allows."""
_OBJECT_STORE_BYTES = 512 * 2**20
_LEAST_FREE_BYTES = 2**20
"""With less space in its session, Ray cannot even write its logs."""
_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107
"""The longest path of a socket, a limit of the operating system."""
_LONGEST_SOCKET = f"{_PREFIX}12345678/r{_START_TRIES}/session_2026-01-31_12-00-00_123456_4194304/sockets/plasma_store"
"""The longest path of one of Ray's sockets in the folder for temporary files; the last number is that of a process."""
_SHORT_FOLDER = "/tmp"
"""The session is a new folder in it that only its owner can read."""


class RayNotStarted(RuntimeError):
    """Ray cannot start on this machine as it is. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.RESOURCES_MISSING


@contextmanager
def local_ray(run_directory: Path, *, cpus: int, gpus: int) -> Iterator[None]:
    """Start a Ray cluster with `cpus` and `gpus` for the with block, unless the caller has joined one already."""
    configure_ray()
    import ray
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # missing in Ray's stub

    from tensorguard.data.read import silence_ray_data

    silence_ray_data()

    if ray.is_initialized():
        yield
        return
    # A process of Ray Train that watches for nodes which a cloud preempts. This cluster is one machine.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # A process that has used Ray before, as a notebook may, keeps the token of that cluster, and would send it.
        AuthenticationTokenLoader.instance().reset_cache()
    note = run_directory / _SESSION_NOTE
    if note.exists():
        _remove_session(note.read_text())
    # The session is not in the run's folder, because the paths of Ray's sockets, which are in the session, are limited.
    # Ray makes its own folder readable for all users, so that folder is inside one that is not.
    session = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_folder_for_sockets()))
    try:
        with names_file(note):
            note.write_text(session.name)
        for tries in range(1, _START_TRIES + 1):
            try:
                init_ray(
                    address="local",
                    num_cpus=cpus,
                    num_gpus=gpus,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=str(session / f"r{tries}"),
                )
                break
            except Exception as error:
                if _TOO_SLOW not in str(error):
                    raise
                ray.shutdown()
                if tries == _START_TRIES:
                    raise RayNotStarted(
                        f"Ray did not start within half a minute in {_START_TRIES} tries: other processes use this "
                        "machine; wait until they have ended, and run this again"
                    ) from error
        yield
    except Exception as error:
        explained = getattr(error, "reason", Reason.WORKER_LOST) is not Reason.WORKER_LOST
        if not explained and shutil.disk_usage(session).free < _LEAST_FREE_BYTES:  # Ray's processes crash without it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(session)) from error
        raise
    finally:
        ray.shutdown()
        gc.collect()  # the next run reuses the numbers of objects: a reference that is freed late would free a new one
        shutil.rmtree(session, ignore_errors=True)
        note.unlink(missing_ok=True)


def _folder_for_sockets() -> str:
    """The folder for temporary files if Ray's sockets can be in it, else /tmp.

    Raises:
        RayNotStarted: neither can be used.
    """
    longest = _SOCKET_BYTES - len(f"/{_LONGEST_SOCKET}")
    for folder in (given := tempfile.gettempdir(), _SHORT_FOLDER):
        if len(os.fsencode(folder)) <= longest and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise RayNotStarted(
        f"TMPDIR: {given} is too long for Ray's sockets, whose paths have at most {_SOCKET_BYTES} bytes, and "
        f"{_SHORT_FOLDER} is not writable: set TMPDIR to a folder whose path has at most {longest} bytes"
    )


def _remove_session(name: str) -> None:
    """Remove the session that a killed run left.

    The note in the run's folder may have been edited. So only a folder that has this name, is directly inside a folder
    for temporary files and belongs to this user is removed.
    """
    for folder in {tempfile.gettempdir(), _SHORT_FOLDER}:
        session = Path(folder) / Path(name).name
        ours = session.name.startswith(_PREFIX) and session.is_dir() and not session.is_symlink()
        if ours and session.stat().st_uid == os.getuid():
            shutil.rmtree(session, ignore_errors=True)


def run_local_rank(values: dict[str, Any]) -> None:
    """The function of each worker on this machine, which runs inside the process group."""
    from ray.train.torch import get_device

    from tensorguard.aggregation.channel import ProcessGroupChannel
    from tensorguard.training.worker import train

    device = get_device()
    train(WorkerConfig.unpack(values), ProcessGroupChannel(device), device)


def run_node_rank(values: dict[str, Any]) -> None:
    """The function of each worker on a cluster of several machines. `values` are those of `NodeFiles.pack`."""
    from ray.train.collective import barrier
    from ray.train.torch import get_device

    from tensorguard.aggregation.channel import ProcessGroupChannel
    from tensorguard.runners.nodes.rank import train_on_node

    device = get_device()
    train_on_node(NodeFiles.unpack(values), ProcessGroupChannel(device), device, barrier)
