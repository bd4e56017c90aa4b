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
from pathlib import Path

from e2e.platform.controlplane import Authority
from e2e.platform.gotools import program
from e2e.platform.processes import TIMEOUT_SECONDS

PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
BUCKET = "clinic"


class S3:
    """The server: its endpoint, the environment that clients need for it, and where it keeps its objects."""

    def __init__(self, root: Path, *, tls: bool) -> None:
        self.root = root
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{self._port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": secrets.token_hex(8),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        given = ["--port", f"127.0.0.1:{self._port}", "--quiet"]
        if tls:
            authority = Authority(root.parent)
            certificate, key = authority.issue("s3", "s3", server=["127.0.0.1"])
            given += ["--cert", str(certificate), "--key", str(key)]
            self.environment["AWS_CA_BUNDLE"] = str(authority.certificate)
        self._command = [str(program("s3", PACKAGE)), *given, "posix", "--sidecar", str(_sidecar(root)), str(root)]
        self._process: subprocess.Popen[bytes] | None = None

    def objects(self, prefix: str = "") -> list[str]:
        """The keys in the bucket, as the server's disk has them."""
        bucket = self.root / BUCKET
        keys = (path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file())
        return sorted(key for key in keys if key.startswith(prefix))

    def start(self) -> None:
        """Start it, and return when it listens."""
        keys = {
            "ROOT_ACCESS_KEY": self.environment["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": self.environment["AWS_SECRET_ACCESS_KEY"],
        }
        self._process = subprocess.Popen(self._command, env={**os.environ, **keys}, stdout=subprocess.DEVNULL)
        _wait_until_it_listens(self._process, self._port)

    def stop(self) -> None:
        """End it. What it stores stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def server(root: Path, *, tls: bool = False) -> Iterator[S3]:
    """A server with one empty bucket, whose objects are files below `root`.

    Args:
        tls: whether it speaks TLS alone, with a certificate of an authority of its own; the environment tells clients
            whom to trust.
    """
    (root / BUCKET).mkdir(parents=True)
    made = S3(root, tls=tls)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _sidecar(root: Path) -> Path:
    """Where objects' metadata lie: the test's file system may lack extended attributes."""
    place = root.with_name(f"metadata-of-{root.name}")  # versitygw compares names, so it must not begin with the root's
    place.mkdir()
    return place


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "the S3 server ended"
            assert time.monotonic() < deadline, "the S3 server does not listen"
            time.sleep(0.05)
