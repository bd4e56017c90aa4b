"""A real S3 server on loopback: versitygw, built from its Go module once and kept outside the tree.

The first build takes a minute on two cores. Where no Go is to be had, tests that ask for the server are skipped.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.gotools import program

PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
BUCKET = "clinic"
PATIENCE_SECONDS = 20


@dataclass(frozen=True)
class S3:
    """The server: its endpoint, the environment that clients need for it, and where it keeps its objects."""

    endpoint: str
    environment: dict[str, str]
    root: Path

    def objects(self, prefix: str = "") -> list[str]:
        """The keys in the bucket, as the server's disk has them."""
        bucket = self.root / BUCKET
        keys = (path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file())
        return sorted(key for key in keys if key.startswith(prefix))


@contextmanager
def server(root: Path) -> Iterator[S3]:
    """A server with one empty bucket, whose objects are files below `root`."""
    versitygw = program("s3", PACKAGE)
    (root / BUCKET).mkdir(parents=True)
    keys = {"AWS_ACCESS_KEY_ID": secrets.token_hex(8), "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"],
    }
    process = subprocess.Popen(
        [
            str(versitygw),
            "--port",
            f"127.0.0.1:{port}",
            "--quiet",
            "posix",
            "--sidecar",
            str(_sidecar(root)),
            str(root),
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_until_it_listens(process, port)
        yield S3(f"http://127.0.0.1:{port}", {**keys, "AWS_EC2_METADATA_DISABLED": "true"}, root)
    finally:
        process.kill()
        process.wait()


def _sidecar(root: Path) -> Path:
    """Where objects' metadata lie: the test's file system may lack extended attributes."""
    place = root.with_name(f"metadata-of-{root.name}")  # versitygw compares names, so it must not begin with the root's
    place.mkdir()
    return place


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "the S3 server ended"
            assert time.monotonic() < deadline, "the S3 server does not listen"
            time.sleep(0.05)
