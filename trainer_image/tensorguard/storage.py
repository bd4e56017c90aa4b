"""How any file system is reached, and what its errors mean: data sets and checkpoints share it.

In: a URI and `spec.storage`. Out: what fsspec wants to know, and, where it fails, a few words for a person. Credentials
never pass through here: each file system finds its own, as its environment says.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.core import split_protocol

from tensafe_api.resources.training import Storage
from tensorguard.backoff import RETRY_SECONDS, retry_delays

_CREDENTIALS = (
    "no credentials were found: give them to the environment (for s3:// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "AWS_PROFILE, or ~/.aws/credentials)"
)
_BY_NAME = {
    "NoCredentialsError": _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "DefaultCredentialsError": "no credentials were found: give them to the environment",
    "EndpointConnectionError": "the service does not answer: see spec.storage.endpoint",
    "SSLError": "the service's certificate is not trusted: name a file of its authority's in AWS_CA_BUNDLE",
    "ConnectTimeoutError": "the service does not answer: see spec.storage.endpoint",
}
"""Errors of clients that are not ours to import: botocore's, google-auth's."""

_AWAY = {
    "ClientConnectionError",  # aiohttp's, and gcsfs' with it
    "ConnectionError",  # botocore's
    "HTTPClientError",
    "ServiceRequestError",  # azure-core's
    "ServiceResponseError",
}
"""Errors, and their kinds, of clients that are not ours to import, by which a service is away for a moment."""
_BUSY = (errno.EBUSY, errno.EREMOTEIO, errno.ETIMEDOUT)
"""What s3fs makes of S3's "slow down", of its internal errors and of its time-outs."""
_SERVERS_OWN = 500
_SHORT = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 2}}
"""botocore's settings: a call that is not answered ends soon, since it is repeated here."""

PVC_SCHEME = "pvc://"
"""Addresses on a cluster's claims, which are folders of the pods that mount them."""

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class RetryingFileSystem:
    """A file system of somebody else's whose calls are repeated while its service is away.

    Args:
        patience_seconds: how long after the first failure of a call a further one is begun.
    """

    def __init__(self, fs: AbstractFileSystem, patience_seconds: float = RETRY_SECONDS) -> None:
        self._fs, self._patience = fs, patience_seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)
        if not callable(found):
            return found
        return lambda *given, **named: self._insist(lambda: found(*given, **named))

    def _insist(self, call: Callable[[], _T]) -> _T:
        deadline = time.monotonic() + self._patience
        for wait in retry_delays():
            try:
                return call()
            except Exception as error:
                if not is_unavailable(error) or time.monotonic() > deadline:
                    raise
                log.warning("the storage does not answer (%s); waiting", type(error).__name__)
            time.sleep(wait)
        raise AssertionError("waits never end")


def is_unavailable(error: Exception) -> bool:
    """Whether a service that failed so may answer in a moment."""
    kinds = {kind.__name__ for cause in (error, error.__cause__, error.__context__) for kind in type(cause).__mro__}
    if any("SSL" in kind or "Certificate" in kind for kind in kinds):  # who is not trusted now will not be then
        return False
    if isinstance(error, OSError) and error.errno in _BUSY:
        return True
    if isinstance(error, ConnectionError | TimeoutError) or any(kind.__name__ in _AWAY for kind in type(error).__mro__):
        return True
    # s3fs makes EIO of every answer that it does not know: a server's own failure passes, a refusal does not.
    answer = getattr(error.__cause__, "response", None)
    metadata = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
    return int(metadata.get("HTTPStatusCode", 0)) >= _SERVERS_OWN


def filesystem_options(uri: str, storage: Storage | None) -> tuple[str, dict[str, Any]]:
    """The fsspec protocol of a URI and the options its file system takes."""
    protocol = split_protocol(uri)[0] or "file"
    if protocol != "s3":
        return protocol, {}
    client: dict[str, Any] = {}
    if storage is not None and storage.endpoint:
        client["endpoint_url"] = storage.endpoint
    if storage is not None and storage.region:
        client["region_name"] = storage.region
    return protocol, {"config_kwargs": _SHORT, **({"client_kwargs": client} if client else {})}


def explain_storage_error(error: Exception) -> str | None:
    """Why a file system failed, in words that hold nothing of a file's content; None where only `error` knows."""
    if found := _BY_NAME.get(type(error).__name__):
        return found
    if isinstance(error, FileNotFoundError):
        return "there is no such file or directory"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return "this kind of address is not known here"
    return None
