"""How errors of object stores are explained and which are retried; the errors are those of their clients."""

from __future__ import annotations

import errno
import os
import ssl

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError, SSLError
from s3fs.errors import translate_boto_error

from tensorguard.storage import RetryingFileSystem, explain_storage_error, is_unavailable

URL = "https://minio.clinic:9000"


def s3_error(code: str, status: int) -> Exception:
    """The error that s3fs raises for an answer of an S3 server."""
    refusal = ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")
    error = translate_boto_error(refusal)
    assert isinstance(error, Exception)
    return error


def untrusted_certificate() -> Exception:
    """The error of azure-core for a certificate that is not trusted."""

    class ServiceRequestError(Exception):
        pass

    error = ServiceRequestError("certificate verify failed")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")
    return error


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url=URL),
        ReadTimeoutError(endpoint_url=URL),
        ConnectionResetError(),
        TimeoutError(),
        s3_error("SlowDown", 503),
        s3_error("InternalError", 500),
        s3_error("ServiceUnavailable", 503),
        s3_error("UnknownErrorCode", 502),
    ],
    ids=repr,
)
def test_call_to_an_unavailable_service_is_retried(error: Exception) -> None:
    assert is_unavailable(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(),
        PermissionError(),
        NoCredentialsError(),
        SSLError(endpoint_url=URL, error="self-signed"),
        untrusted_certificate(),
        s3_error("AccessDenied", 403),
        s3_error("NoSuchBucket", 404),
        s3_error("QuotaExceeded", 400),
        s3_error("InvalidAccessKeyId", 403),
        OSError(28, "no space left on device"),
        ValueError(),
    ],
    ids=repr,
)
def test_permanent_refusal_is_not_retried(error: Exception) -> None:
    assert not is_unavailable(error)


@pytest.mark.slow
def test_retries_end_with_the_error_of_the_service() -> None:
    tries: list[str] = []

    class Unavailable:
        def cat_file(self, path: str) -> bytes:
            tries.append(path)
            raise ConnectionRefusedError(path)

    with pytest.raises(ConnectionRefusedError):
        RetryingFileSystem(Unavailable(), retry_seconds=0.5).cat_file("a")  # type: ignore[arg-type]
    assert 2 <= len(tries) <= 5


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NoCredentialsError(), "AWS_ACCESS_KEY_ID"),
        (EndpointConnectionError(endpoint_url="http://localhost:1"), "spec.storage.endpoint"),
        (FileNotFoundError("x"), "no such file"),
        (PermissionError("x"), "permission denied"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
    ],
)
def test_storage_error_is_explained_with_its_fix(error: Exception, text: str) -> None:
    assert text in (explain_storage_error(error) or "")


def test_unknown_storage_error_is_not_explained() -> None:
    assert explain_storage_error(RuntimeError("a record's content")) is None
