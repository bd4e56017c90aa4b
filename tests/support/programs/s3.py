"""A real S3 server on loopback: versitygw, built once from its Go module and kept outside the tree.

The first build takes a minute on two cores. Tests that need the server are skipped where Go is unavailable.
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

from tests.support.programs.controlplane import CertificateAuthority
from tests.support.programs.gotools import program
from tests.support.programs.processes import TIMEOUT_SECONDS

PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
BUCKET = "clinic"


def executable() -> Path:
    """The server's program, built if the cache lacks it. Raises GoUnavailable where it cannot be built."""
    return program("s3", PACKAGE)


class S3:
    """The server: its endpoint, the environment that its clients need, and the folder of its objects."""

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
        flags = ["--port", f"127.0.0.1:{self._port}", "--quiet"]
        if tls:
            authority = CertificateAuthority(root.parent)
            certificate, key = authority.issue("s3", "s3", server=["127.0.0.1"])
            flags += ["--cert", str(certificate), "--key", str(key)]
            self.environment["AWS_CA_BUNDLE"] = str(authority.certificate)
        self._command = [str(executable()), *flags, "posix", "--sidecar", str(_sidecar(root)), str(root)]
        self._process: subprocess.Popen[bytes] | None = None

    def objects(self, prefix: str = "") -> list[str]:
        """The keys of the bucket's objects, read from the server's disk."""
        bucket = self.root / BUCKET
        keys = (path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file())
        return sorted(key for key in keys if key.startswith(prefix))

    def start(self) -> None:
        """Start the server, and return once it listens."""
        keys = {
            "ROOT_ACCESS_KEY": self.environment["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": self.environment["AWS_SECRET_ACCESS_KEY"],
        }
        self._process = subprocess.Popen(self._command, env={**os.environ, **keys}, stdout=subprocess.DEVNULL)
        _wait_until_it_listens(self._process, self._port)

    def stop(self) -> None:
        """Stop the server. Its objects stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def server(root: Path, *, tls: bool = False) -> Iterator[S3]:
    """Run a server with one empty bucket, whose objects are files below `root`.

    Args:
        tls: whether the server accepts only TLS. Its certificate is of a new authority, which the environment names to
            clients.
    """
    (root / BUCKET).mkdir(parents=True)
    running = S3(root, tls=tls)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def _sidecar(root: Path) -> Path:
    """Create the folder for objects' metadata, because the file system may lack extended attributes."""
    place = root.with_name(f"metadata-of-{root.name}")  # versitygw rejects a name that starts with the root's
    place.mkdir()
    return place


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "the S3 server has exited"
            assert time.monotonic() < deadline, "the S3 server does not listen in time"
            time.sleep(0.05)
