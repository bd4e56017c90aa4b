"""What is said when a file system fails, and what is waited for: errors as the clients of object stores make them."""

from __future__ import annotations

import errno
import os
import ssl

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError, SSLError
from s3fs.errors import translate_boto_error

from tensorguard.storage import RetryingFileSystem, explain_storage_error, is_unavailable

URL = "https://minio.clinic:9000"


def answered(code: str, status: int) -> Exception:
    """What s3fs raises for an answer of an S3 server."""
    refusal = ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")
    error = translate_boto_error(refusal)
    assert isinstance(error, Exception)
    return error


def of_authority() -> Exception:
    """As azure-core tells of a certificate that is not trusted."""

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
        answered("SlowDown", 503),
        answered("InternalError", 500),
        answered("ServiceUnavailable", 503),
        answered("NobodyKnowsThisOne", 502),
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
        of_authority(),
        answered("AccessDenied", 403),
        answered("NoSuchBucket", 404),
        answered("QuotaExceeded", 400),
        answered("InvalidAccessKeyId", 403),
        OSError(28, "no space left on device"),
        ValueError(),
    ],
    ids=repr,
)
def test_permanent_refusal_is_not_retried(error: Exception) -> None:
    assert not is_unavailable(error)


def test_retries_end_with_the_error_of_the_service() -> None:
    tries: list[str] = []

    class Away:
        def cat_file(self, path: str) -> bytes:
            tries.append(path)
            raise ConnectionRefusedError(path)

    with pytest.raises(ConnectionRefusedError):
        RetryingFileSystem(Away(), retry_seconds=0.5).cat_file("a")  # type: ignore[arg-type]
    assert 2 <= len(tries) <= 5


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoCredentialsError(), "AWS_ACCESS_KEY_ID"),
        (EndpointConnectionError(endpoint_url="http://localhost:1"), "spec.storage.endpoint"),
        (FileNotFoundError("x"), "no such file"),
        (PermissionError("x"), "permission denied"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
    ],
)
def test_storage_error_is_explained_with_its_fix(error: Exception, words: str) -> None:
    assert words in (explain_storage_error(error) or "")


def test_unknown_storage_error_is_not_explained() -> None:
    assert explain_storage_error(RuntimeError("a record's content")) is None
