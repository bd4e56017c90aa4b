"""How any file system is reached, and what its errors mean: data sets and checkpoints share it.

In: a URI and `spec.storage`. Out: what fsspec wants to know, and, where it fails, a few words for a person. Credentials
never pass through here: each file system finds its own, as its environment says.
"""

from __future__ import annotations

from typing import Any

from fsspec.core import split_protocol

from tensafe_api.resources.learning import Storage

_CREDENTIALS = (
    "no credentials were found: give them to the environment (for s3:// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "AWS_PROFILE, or ~/.aws/credentials)"
)
_BY_NAME = {
    "NoCredentialsError": _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "DefaultCredentialsError": "no credentials were found: give them to the environment",
    "EndpointConnectionError": "the service does not answer: see spec.storage.endpoint",
    "ConnectTimeoutError": "the service does not answer: see spec.storage.endpoint",
}
"""Errors of clients that are not ours to import: botocore's, google-auth's."""


def filesystem_of(uri: str, storage: Storage | None) -> tuple[str, dict[str, Any]]:
    """The fsspec protocol of a URI and the options its file system takes."""
    protocol = split_protocol(uri)[0] or "file"
    if protocol != "s3":
        return protocol, {}
    client = {}
    if storage is not None and storage.endpoint:
        client["endpoint_url"] = storage.endpoint
    if storage is not None and storage.region:
        client["region_name"] = storage.region
    return protocol, {"client_kwargs": client} if client else {}


def reason_of(error: Exception) -> str | None:
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
