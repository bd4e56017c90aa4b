"""Opens file systems through fsspec, retries their calls, and explains their errors. Data and checkpoints share it.

In come a URI and `spec.storage`; out come the options of fsspec and, after a failure, a sentence for the user.
Credentials never pass through here: each file system reads its own from the environment.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.core import split_protocol

from tensafe_api.resources.training import Storage
from tensorguard.backoff import RETRY_SECONDS, retry_delays

_CREDENTIALS = (
    "no credentials were found: set them in the environment (for s3:// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "AWS_PROFILE, or ~/.aws/credentials)"
)
_BY_NAME = {
    "NoCredentialsError": _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "DefaultCredentialsError": "no credentials were found: set them in the environment",
    "EndpointConnectionError": "the service does not answer: check spec.storage.endpoint",
    "SSLError": "the service's certificate is not trusted: set AWS_CA_BUNDLE to the file of its certificate authority",
    "ConnectTimeoutError": "the service does not answer: check spec.storage.endpoint",
}
"""Errors by class name, because this module does not import the clients that raise them: botocore, google-auth."""

_UNAVAILABLE = {
    "ClientConnectionError",  # aiohttp's, and gcsfs' with it
    "ConnectionError",  # botocore's
    "HTTPClientError",
    "ServiceRequestError",  # azure-core's
    "ServiceResponseError",
}
"""Class names of errors, and of their base classes, that a service raises while it is unavailable for a short time."""
_BUSY = (errno.EBUSY, errno.EREMOTEIO, errno.ETIMEDOUT)
"""Error numbers into which s3fs converts S3's "slow down", its internal errors and its time-outs."""
_FIRST_SERVER_ERROR = 500
_SHORT_TIMEOUTS = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 2}}
"""botocore's settings. A call without an answer ends soon, because it is retried here."""

PVC_SCHEME = "pvc://"
"""Prefix of a URI on a PVC of the cluster, which is a folder in the pods that mount it."""

GIT_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins that `git clone` without Git LFS leaves in place of a large one."""
GIT_LFS_FIX = "run `git lfs pull` in its folder"

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class RetryingFileSystem:
    """A remote file system whose calls are retried while its service is unavailable.

    Args:
        fs: the file system.
        retry_seconds: no retry of a call starts later than this after its first failure.
    """

    def __init__(self, fs: AbstractFileSystem, retry_seconds: float = RETRY_SECONDS) -> None:
        self._fs, self._retry_seconds = fs, retry_seconds

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._fs, name)
        if not callable(attribute):
            return attribute
        return lambda *args, **kwargs: self._retry(lambda: attribute(*args, **kwargs))

    def _retry(self, call: Callable[[], _T]) -> _T:
        deadline = time.monotonic() + self._retry_seconds
        for wait in retry_delays():
            try:
                return call()
            except Exception as error:
                if not is_unavailable(error) or time.monotonic() > deadline:
                    raise
                log.warning("the storage does not answer (%s); retrying", type(error).__name__)
            time.sleep(wait)
        raise AssertionError("retry_delays never ends")


def is_unavailable(error: Exception) -> bool:
    """Whether the service that raised `error` may answer a retry."""
    kinds = {kind.__name__ for cause in (error, error.__cause__, error.__context__) for kind in type(cause).__mro__}
    if any("SSL" in kind or "Certificate" in kind for kind in kinds):  # a retry does not make a certificate trusted
        return False
    if isinstance(error, OSError) and error.errno in _BUSY:
        return True
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if any(kind.__name__ in _UNAVAILABLE for kind in type(error).__mro__):
        return True
    # s3fs converts every unknown answer into EIO. A failure of the server may pass; a refusal does not.
    answer = getattr(error.__cause__, "response", None)
    metadata = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
    return int(metadata.get("HTTPStatusCode", 0)) >= _FIRST_SERVER_ERROR


def filesystem_options(uri: str, storage: Storage | None) -> tuple[str, dict[str, Any]]:
    """The fsspec protocol of a URI, and the options of its file system."""
    protocol = split_protocol(uri)[0] or "file"
    if protocol != "s3":
        return protocol, {}
    client: dict[str, Any] = {}
    if storage is not None and storage.endpoint:
        client["endpoint_url"] = storage.endpoint
    if storage is not None and storage.region:
        client["region_name"] = storage.region
    return protocol, {"config_kwargs": _SHORT_TIMEOUTS, **({"client_kwargs": client} if client else {})}


def write_files(directory: Path, files: Mapping[str, bytes], mode: int = 0o666) -> None:
    """Write files, their content by name, into a directory of this machine that has none of them.

    Returns once the content is on the disk; `sync_directory` waits for the names. `mode`: of the files, as far as the
    umask allows.
    """
    for name, content in files.items():
        path = directory / name
        path.touch(mode, exist_ok=False)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Return once the names of the files in a directory of this machine are on its disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def name_in(uri: str) -> str:
    """The last part of a URI or path: the name of a checkpoint in the address of its folder."""
    return uri.rstrip("/").rsplit("/", 1)[-1]


def explain_storage_error(error: Exception) -> str | None:
    """Why a file system failed, without any content of a file; None where only `error` itself explains it."""
    if found := _BY_NAME.get(type(error).__name__):
        return found
    if isinstance(error, FileNotFoundError):
        return "there is no such file or directory"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return "this kind of URI is not supported"
    return None


def without_a_job(message: object) -> str:
    """The message of a failed read, for a person who reads a checkpoint and has no job to change or to resume."""
    text = str(message)
    if missing := re.fullmatch(r"(?i:please )?(?i:install) (\w+) to access .*", text):  # fsspec's words
        return f"the package {missing[1]} is missing: pip install {missing[1]}, where tensafe is installed"
    return text.replace("spec.storage.endpoint", "AWS_ENDPOINT_URL").removesuffix("; fix the cause, and resume")
