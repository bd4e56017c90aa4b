"""Lines in a file: durable, never interleaved, and whole again after a kill."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from tensorguard.audit_log.line_files import AuditLogUnwritable, LineFile


def line(number: int) -> bytes:
    return b'{"number":%d}' % number


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_lines_are_read_once(path: Path) -> None:
    writer, reader = LineFile(path), LineFile(path)
    assert reader.read_new() == []
    assert writer.append(1, line(1)) and writer.append(2, line(2))
    assert reader.read_new() == [line(1), line(2)]
    assert reader.read_new() == [] == writer.read_new()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_writer_reads_the_lines_of_another_one_first(path: Path) -> None:
    one, other = LineFile(path), LineFile(path)
    assert one.append(1, line(1))
    assert not other.append(1, line(7))
    assert other.read_new() == [line(1)]
    assert other.append(2, line(2))
    assert path.read_bytes() == line(1) + b"\n" + line(2) + b"\n"


@pytest.mark.parametrize("kept", range(len(line(2))))
def test_line_that_a_kill_cut_is_replaced(path: Path, kept: int) -> None:
    path.write_bytes(line(1) + b"\n" + line(2)[:kept])
    file = LineFile(path)
    assert file.read_new() == [line(1)]
    assert file.torn_line() == line(2)[:kept]
    assert file.append(2, line(3))
    assert path.read_bytes() == line(1) + b"\n" + line(3) + b"\n"


def test_line_that_lacks_only_its_newline_is_completed(path: Path) -> None:
    path.write_bytes(line(1) + b"\n" + line(2))
    file = LineFile(path)
    assert file.read_new() == [line(1)]
    assert not file.append(2, line(3))
    assert file.read_new() == [line(2)]
    assert file.append(3, line(3))
    assert path.read_bytes() == b"".join(line(number) + b"\n" for number in (1, 2, 3))


def test_line_is_on_the_disk_before_append_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    file = LineFile(path)
    file.append(1, line(1))
    file.append(2, line(2))
    assert synced[-2:] == [len(line(1)) + 1, path.stat().st_size]


def test_failed_write_leaves_no_part_of_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LineFile(path)
    file.append(1, line(1))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:5]))
    with pytest.raises(AuditLogUnwritable, match="only a part of the line was written"):
        file.append(2, line(2))
    monkeypatch.undo()
    assert path.read_bytes() == line(1) + b"\n"
    assert file.append(2, line(2))


def test_file_that_was_cut_while_in_use_is_refused(path: Path) -> None:
    file = LineFile(path)
    file.append(1, line(1))
    path.write_bytes(b"")
    with pytest.raises(AuditLogUnwritable, match="lines were removed while it was in use"):
        file.append(2, line(2))


def append_many(path: Path, count: int) -> None:
    file, number = LineFile(path), 1
    for _ in range(count):
        while not file.append(number, b'{"pid":%d}' % os.getpid()):
            number += len(file.read_new())
        number += 1


def test_two_processes_never_interleave(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=append_many, args=(path, 60)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = path.read_bytes().splitlines()
    assert sorted(lines) == sorted([b'{"pid":%d}' % process.pid for process in processes for _ in range(60)])
