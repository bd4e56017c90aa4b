"""What is said when a file system fails."""

from __future__ import annotations

import errno
import os

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from tensorguard.storage import reason_of


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
def test_an_error_is_told_with_its_mend(error: Exception, words: str) -> None:
    assert words in (reason_of(error) or "")


def test_an_unknown_error_is_left_to_whoever_knows_whether_it_may_be_quoted() -> None:
    assert reason_of(RuntimeError("a record's content")) is None
