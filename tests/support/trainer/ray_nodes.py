"""A Ray cluster of several nodes on this machine, each with its own temporary folder and its own environment.

`ray start` runs each node as on a machine of its own. A node may also have its own empty folder over a path, so that
this path is not shared with the others (a mount namespace, which needs root or user namespaces).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.trainer.rank_harness import free_port

STARTS = 3
_MOUNT = 'mount -t tmpfs none "$0" && exec "$@"'


class RayNodes:
    """The processes of a cluster.

    Attributes:
        address: what a driver on this machine joins.
        environment: the variables that all nodes have, and a driver needs.
        session: the folder of Ray's sessions, of all nodes.
    """

    def __init__(self) -> None:
        self.session = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # the path of a socket must be short
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start_head(self, folder: Path, *, cpus: int, **variables: str) -> None:
        """Start the head. `folder` takes its log and its temporary files."""
        head = ("--head", f"--port={self._port}", "--include-dashboard=false", f"--temp-dir={self.session}")
        self._start(folder, (), variables, *head, f"--num-cpus={cpus}")

    def start_node(self, folder: Path, *, cpus: int, unshared: Path | None = None, **variables: str) -> None:
        """Start a further node; at the path `unshared` it has an empty folder of its own."""
        namespace = ("unshare", "--map-root-user", "--mount", "sh", "-c", _MOUNT, str(unshared)) if unshared else ()
        self._start(folder, namespace, variables, f"--address={self.address}", f"--num-cpus={cpus}")

    def stop(self) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.session, ignore_errors=True)

    def _start(self, folder: Path, prefix: tuple[str, ...], variables: dict[str, str], *arguments: str) -> None:
        """Start a node. Retry if the machine is too slow for the half minute that Ray allows itself."""
        temporary, log = folder / "tmp", folder / "ray.log"
        temporary.mkdir(parents=True, exist_ok=True)
        common = ("--object-store-memory=100000000", "--node-ip-address=127.0.0.1")
        for _ in range(STARTS):
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*prefix, str(Path(sys.executable).with_name("ray")), "start", "--block", *arguments, *common],
                    env={**self.environment, "TMPDIR": str(temporary), **variables},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._processes.append(process)
            while process.poll() is None:
                if b"Ray runtime started" in log.read_bytes():
                    return
                time.sleep(0.1)  # it reports this in its log only
        raise AssertionError(log.read_text())


def can_unshare() -> bool:
    """Whether this user can give a process its own mounts."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", _MOUNT, "/mnt", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
