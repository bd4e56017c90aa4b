"""The run log: what is written is read again, and a line that a kill cut is left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tensafe_api.tasks import METRICS
from tensorguard.training.run_log import (
    AppendedLines,
    Ended,
    Evaluated,
    LogRecord,
    Preparing,
    RunLog,
    RunLogReader,
    Saved,
    Started,
    Stepped,
    steps_charged_in,
)

RECORDS: list[LogRecord] = [
    Preparing(1.5, "Starting Ray"),
    Started(2.0, 1, 2, 3),
    Stepped(3.0, 4, 7),
    Evaluated(4.0, 4, 0.5, {"accuracy": 0.75}),
    Evaluated(5.0, 5, 0.25),
    Saved(6.0, 5, "s3://b/step-5", "sha256:a", False, 9),
    Ended(7.0, 1, "Completed", "all 5 steps are done"),
]


def write(path: Path, *records: LogRecord) -> None:
    log = RunLog(path)
    for record in records:
        log.write(record)
    log.close()


def test_records_are_read_again(tmp_path: Path) -> None:
    write(tmp_path / "log", *RECORDS)
    assert list(RunLogReader(tmp_path / "log").read()) == RECORDS


def test_only_the_owner_can_read_the_log(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "log")
    finally:
        os.umask(before)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_accuracy_is_always_a_key_and_metrics_are_keys_of_their_own() -> None:
    assert Evaluated(4.0, 4, 0.5, {"f1": 0.7}).values() == {
        "time": 4.0,
        "step": 4,
        "loss": 0.5,
        "accuracy": None,
        "f1": 0.7,
    }


def test_metric_of_a_newer_version_is_left_out() -> None:
    values = Evaluated(4.0, 4, 0.5, {"f1": 0.7}).values() | {"newer": 1.0}
    assert Evaluated.from_values(values) == Evaluated(4.0, 4, 0.5, {"f1": 0.7})


def test_main_metric_has_its_title() -> None:
    assert Evaluated(4.0, 4, 0.5).main_metric is None
    assert Evaluated(4.0, 4, 0.5, {"f1": 0.7}).main_metric == (METRICS["f1"].title, 0.7)
    assert Evaluated(4.0, 4, 0.5, {"accuracy": 0.6}).main_metric == (METRICS["accuracy"].title, 0.6)


def test_reader_returns_what_was_appended_since_its_last_call(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = RunLogReader(path)
    assert list(reader.read()) == []
    write(path, RECORDS[0], RECORDS[1])
    assert list(reader.read()) == RECORDS[:2]
    write(path, RECORDS[2])
    assert list(reader.read()) == RECORDS[2:3]
    assert list(reader.read()) == []


def test_reader_from_the_end_leaves_earlier_records_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, RECORDS[0])
    reader = RunLogReader(path, from_end=True)
    write(path, RECORDS[1])
    assert list(reader.read()) == [RECORDS[1]]
    assert list(RunLogReader(tmp_path / "none", from_end=True).read()) == []


def test_half_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntw")
    lines = AppendedLines(path)
    assert list(lines.read()) == [b"one\n"]
    path.write_bytes(b"one\ntwo\n")
    assert list(lines.read()) == [b"two\n"]


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "stepped", "time": 1.0, "st{"kind": "stepped"}',
        json.dumps({"kind": "newer", "time": 1.0}),
        json.dumps({"time": 1.0, "step": 1, "charged": 1}),
        json.dumps({"kind": "stepped", "time": 1.0, "step": 1, "charged": "9"}),
        json.dumps({"kind": "stepped", "time": 1.0, "step": 1}),
        json.dumps({"kind": "evaluated", "time": 1.0, "step": 1}),
    ],
)
def test_line_that_is_no_record_is_left_out(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{line}\n")
    write(path, RECORDS[2])
    assert list(RunLogReader(path).read()) == [RECORDS[2]]


def test_charged_steps_are_the_highest_that_were_logged(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert steps_charged_in(path) == 0
    write(path, RECORDS[1])
    assert steps_charged_in(path) == 0
    write(path, Stepped(1.0, 1, 7), Saved(1.0, 1, "u", "d", False, 9), Stepped(1.0, 2, 8))
    assert steps_charged_in(path) == 9
