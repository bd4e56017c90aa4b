"""What the real W&B library writes in an export: its transaction log, which is what it would send, is read here."""

from __future__ import annotations

import getpass
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensorguard.trackers.figures import CONFIG_FIELDS, KEYS, grouped
from tensorguard.trackers.to_wandb import PRIVATE_SETTINGS, READ_BY_LIBRARY, WandbTracker, limit_environment
from tensorguard.trackers.tracker import TrackerError
from tests.support.trainer.recorded_run import RecordedRun, crashed_and_finished

_FOLDERS = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
_BLOCK = 32768
_COMPLETE = (1, 4)
"""Types of a part of a record that ends it, in the format of LevelDB's log."""


def export(run: RecordedRun, directory: Path, **environment: str) -> str:
    """Export `run` without a network, as a user of the command does; W&B's files are in `directory`. Returns stderr."""
    directory.mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    finished = subprocess.run(
        [sys.executable, "-m", "tensorguard.cli.main", "export", str(run.directory), "--to", "wandb"],
        env={**clean, **dict.fromkeys(_FOLDERS, str(directory)), "WANDB_MODE": "offline", **environment},
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stderr


def records(directory: Path) -> Iterator[Any]:
    """The records of all transaction logs, oldest log first."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(directory.glob("wandb/offline-run-*/*.wandb")):
        content, position, parts = path.read_bytes(), 7, b""
        while position + 7 <= len(content):
            if (left := _BLOCK - position % _BLOCK) < 7:
                position += left
                continue
            length, kind = struct.unpack("<HB", content[position + 4 : position + 7])
            parts += content[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in _COMPLETE:
                yield Record.FromString(parts)
                parts = b""


def history(directory: Path) -> list[dict[str, float]]:
    """The rows of the run's history."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records(directory)
        if record.WhichOneof("record_type") == "history"
    ]


@dataclass(frozen=True)
class Exported:
    """A run, and the folder with W&B's files of its export."""

    run: RecordedRun
    files: Path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A whole run, exported with its adapter, by a user whose environment asks for all that W&B can collect."""
    folder = tmp_path_factory.mktemp("wandb")
    run = crashed_and_finished(folder / "run")
    everything = {
        "WANDB_CONSOLE": "wrap",
        "WANDB_DISABLE_CODE": "false",
        "WANDB_DISABLE_GIT": "false",
        "WANDB_HOST": "machine-7",
        "WANDB_SAVE_CODE": "true",
        "WANDB_X_DISABLE_MACHINE_INFO": "false",
        "WANDB_X_DISABLE_META": "false",
        "WANDB_X_DISABLE_STATS": "false",
        "WANDB_X_SAVE_REQUIREMENTS": "true",
        "WANDB_X_STATS_SAMPLING_INTERVAL": "0.1",
        "WANDB_SWEEP_ID": "a-sweep",
    }
    (folder / "files").mkdir()
    (folder / "files" / "config-defaults.yaml").write_text("path: {value: /data/SECRET.parquet}\n")
    export(run, folder / "files", WANDB_PROJECT="notes", WANDB_NAME="first", WANDB_LOG_MODEL="end", **everything)
    return Exported(run, folder / "files")


@pytest.mark.slow
def test_wandb_receives_only_what_is_allowed(exported: Exported) -> None:
    rows = history(exported.files)
    assert [row["train/global_step"] for row in rows] == [*range(1, 13), *range(11, 21)]
    assert [row["_step"] for row in rows] == list(range(1, 23))
    assert [row["eval/loss"] for row in rows if "eval/loss" in row] == [0.69, 0.6, 0.5, 0.4]
    assert rows[-1]["dp/steps_charged"] == 23
    own = {"_step", "_timestamp", "_runtime"}
    assert {key for row in rows for key in row} <= {grouped(key) for key in KEYS} | own

    found = list(records(exported.files))
    kinds = {record.WhichOneof("record_type") for record in found}
    assert kinds <= {"header", "run", "telemetry", "summary", "history", "artifact", "request", "exit", "final"}
    summary = {item.key or item.nested_key[0] for record in found for item in record.summary.update}
    assert summary <= {grouped(key) for key in KEYS} | own | {"_wandb"}
    (started,) = (record.run for record in found if record.HasField("run"))
    config = {item.key for item in started.config.update}
    names = {field.removeprefix("spec.") for field in CONFIG_FIELDS}
    assert config <= names | {"privacy.adjacency", "privacy.sampleRate", "stepsPerEpoch", "_wandb"}
    assert (started.project, started.display_name, started.run_id) == ("notes", "first", exported.run.job.metadata.uid)
    assert (started.host, started.git.remote_url, started.sweep_id) == ("-", "", "")


@pytest.mark.slow
def test_files_of_wandb_hold_nothing_private_and_nothing_of_the_machine(exported: Exported) -> None:
    """No console, code, command line, host, user, hardware or statistics: they are neither in the log nor in files."""
    (folder,) = (exported.files / "wandb").glob("offline-run-*")
    assert sorted(path.name for path in (folder / "files").rglob("*") if path.is_file()) == []
    (log,) = folder.glob("*.wandb")
    content = log.read_bytes()
    machine = (socket.getfqdn(), "tensorguard.cli", sys.executable, str(exported.run.directory / "job.yaml"))
    for word in ("SECRET", "machine-7", "requirements", "cpu_count", "hostname", *machine):
        assert word.encode() not in content, word
    for record in records(exported.files):
        for _, value in _strings(record):
            assert value not in (socket.gethostname(), getpass.getuser())


def test_destination_is_written_without_a_password() -> None:
    tracker = WandbTracker({"WANDB_BASE_URL": "https://user:SECRET@wandb.example:8080/", "WANDB_ENTITY": "team"})
    assert tracker.destination == "https://wandb.example:8080//team/tensafe"


def test_library_reads_only_variables_that_say_where_to_send(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("API_KEY", "TAGS", "SWEEP_ID", "CONFIG_PATHS", "RUN_ID"):
        monkeypatch.setenv(f"WANDB_{name}", "set")
    monkeypatch.setenv("WANDB_CACHE_DIR", "cache")
    limit_environment()
    assert {name for name in os.environ if name.startswith("WANDB_")} <= READ_BY_LIBRARY
    assert (os.environ["WANDB_API_KEY"], os.environ["WANDB_TAGS"]) == ("set", "set")
    assert os.environ["WANDB_CACHE_DIR"] == str(tmp_path / "cache")


def test_everything_that_the_library_collects_is_switched_off() -> None:
    """Some of these settings imply others, in some versions of the library."""
    assert PRIVATE_SETTINGS == {
        "console": "off",
        "disable_code": True,
        "disable_git": True,
        "disable_job_creation": True,
        "save_code": False,
        "host": "-",
        "username": "-",
        "program": "-",
        "x_disable_machine_info": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
        "x_save_requirements": False,
    }


@pytest.mark.slow
def test_resume_keeps_the_run_of_wandb(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run")
    run.start(1, 1, 0)
    run.take_steps(1, 8)
    run.save(8)
    run.end(Reason.INTERRUPTED)
    export(run, tmp_path / "files")
    run.start(2, 1, 8)
    run.take_steps(9, 20)
    run.end(Reason.COMPLETED, attempt=2)
    export(run, tmp_path / "files")
    started = [record.run for record in records(tmp_path / "files") if record.HasField("run")]
    assert [each.run_id for each in started] == [run.job.metadata.uid] * 2
    assert all(each.resume for each in started)
    steps = [row["train/global_step"] for row in history(tmp_path / "files") if "train/global_step" in row]
    assert steps == list(range(1, 21))


@pytest.mark.slow
def test_adapter_is_an_artifact_on_request(exported: Exported) -> None:
    artifacts = [
        (artifact.type, set(artifact.aliases), {entry.path for entry in artifact.manifest.contents})
        for record in records(exported.files)
        if (artifact := record.artifact).name
    ]
    statement = {"statement.json", "statement.md"}
    assert artifacts == [
        ("privacy-statement", {"latest", "final_model"}, statement),
        ("model", {"latest", "final_model"}, statement | {"adapter_model.safetensors", "adapter_config.json"}),
    ]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("WANDB_LOG_MODEL", "always", "set it to end, checkpoint or false"),
        ("WANDB_WATCH", "gradients", "which are private: unset it"),
    ],
)
def test_setting_that_cannot_be_obeyed_is_refused(variable: str, value: str, message: str) -> None:
    with pytest.raises(TrackerError, match=f"{variable}: '{value}'.*{message}"):
        WandbTracker({variable: value})


def _strings(message: Any) -> Iterator[tuple[str, str]]:
    """Every string in a protobuf message."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        for each in values:
            if isinstance(each, str):
                yield field.name, each
            elif hasattr(each, "ListFields"):
                yield from _strings(each)
