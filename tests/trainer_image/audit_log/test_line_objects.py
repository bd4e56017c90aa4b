"""Lines as objects: in memory, and on a real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from tensorguard.audit_log.line_files import AuditLogUnwritable
from tensorguard.audit_log.line_objects import LineObjects
from tests.support.programs.s3 import BUCKET, S3


def line(number: int) -> bytes:
    return b'{"number":%d}' % number


@pytest.fixture
def open_log() -> Iterator[Callable[[], LineObjects]]:
    uri = f"memory://{uuid.uuid4().hex}/audit-1"
    yield lambda: LineObjects(uri)
    fsspec.filesystem("memory").rm(uri, recursive=True)


def check_lines(open_log: Callable[[], LineObjects]) -> None:
    one, other = open_log(), open_log()
    assert one.read_new() == []
    assert one.append(1, line(1)) and one.append(2, line(2))
    assert not other.append(1, line(7)), "a line of another process was overwritten"
    assert other.read_new() == [line(1), line(2)]
    assert other.append(3, line(3))
    assert not one.append(3, line(4))
    assert one.read_new() == [line(3)]
    assert one.names() == ["00000001.json", "00000002.json", "00000003.json"]
    assert open_log().read_new() == [line(1), line(2), line(3)]


def test_lines_are_stored_as_objects(open_log: Callable[[], LineObjects]) -> None:
    check_lines(open_log)


def test_line_whose_answer_was_lost_is_not_stored_twice(open_log: Callable[[], LineObjects]) -> None:
    assert open_log().append(1, line(1))
    assert open_log().append(1, line(1)), "it is the line of the first try"


def test_missing_line_ends_the_log(open_log: Callable[[], LineObjects]) -> None:
    log = open_log()
    for number in (1, 2, 3):
        log.append(number, line(number))
    fsspec.filesystem("memory").rm_file(f"{log.name}/00000002.json".removeprefix("memory:/"))
    assert open_log().read_new() == [line(1)]


def test_storage_that_refuses_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AuditLogUnwritable, match="cannot be"):
        LineObjects(f"file://{tmp_path}/file/audit-1").append(1, line(1))


def test_lines_are_stored_on_s3(s3_bucket: S3) -> None:
    options = {"client_kwargs": {"endpoint_url": s3_bucket.endpoint}}
    check_lines(lambda: LineObjects(f"s3://{BUCKET}/claims/audit-1", options))
