"""The parameters of a worker travel through Ray as plain values, and tracebacks stay with their owner."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorguard.ledger.backends import LedgerLocation
from tensorguard.training.config import (
    COUNTED_RECORDS_REMARK,
    WorkerConfig,
    append_traceback,
    counted_records_remark,
    tracebacks_of,
)

CONFIG = WorkerConfig(
    job="{}",
    job_uid="uid",
    attempt=2,
    place="OneMachine",
    run_directory="/run",
    private_directory="/private",
    key_file="/private/job.key",
    shards=("a", "b"),
    evaluation=None,
    dataset_digest="sha256:a",
    threads=1,
)


@pytest.mark.parametrize(
    "location",
    [None, LedgerLocation(**dict.fromkeys(LedgerLocation.__dataclass_fields__, "x"))],
    ids=["on one machine", "in a cluster"],
)
def test_packed_parameters_are_unpacked_again(location: LedgerLocation | None) -> None:
    config = WorkerConfig(**{**vars(CONFIG), "ledger_location": location})
    packed = config.pack()
    assert json.loads(json.dumps(packed))["attempt"] == 2
    unpacked = WorkerConfig.unpack(packed)
    assert unpacked == config
    assert unpacked.ledger_location == location


def test_traceback_file_is_in_the_private_folder() -> None:
    assert CONFIG.traceback_file("rank1") == Path("/private/errors-rank1.log")


def test_tracebacks_are_appended_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "errors-rank0.log"
    before = os.umask(0)
    try:
        for attempt in (1, 2):
            try:
                raise KeyError(f"patient {attempt}")
            except KeyError:
                append_traceback(path, attempt)
    finally:
        os.umask(before)
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "attempt 1\n" in text and "attempt 2\n" in text
    assert "KeyError: 'patient 1'" in text and "KeyError: 'patient 2'" in text


def test_only_the_tracebacks_of_an_attempt_are_found(tmp_path: Path) -> None:
    for process, attempt in (("rank0", 1), ("rank1", 12), ("driver", 2)):
        path = tmp_path / f"errors-{process}.log"
        assert append_traceback(path, attempt) == f"; {path} has the traceback"
    (tmp_path / "errors-rank2.log").touch()
    assert tracebacks_of(tmp_path, 1) == [tmp_path / "errors-rank0.log"]
    assert tracebacks_of(tmp_path, 3) == []
    assert tracebacks_of(tmp_path / "nowhere", 1) == []


def test_traceback_that_cannot_be_written_hides_no_error(tmp_path: Path) -> None:
    assert append_traceback(tmp_path / "nowhere" / "errors-rank0.log", 1) == ""


@pytest.mark.parametrize(("adjacency", "remarks"), [("ZeroOut", 1), ("AddOrRemoveOne", 0)])
def test_counted_records_are_a_remark_where_their_number_is_public(adjacency: str, remarks: int) -> None:
    mechanism: Any = SimpleNamespace(adjacency=adjacency)
    assert counted_records_remark(mechanism, 77) == (COUNTED_RECORDS_REMARK.format(count=77),) * remarks
