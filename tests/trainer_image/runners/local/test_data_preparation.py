"""What the preparation of the data gives to Ray, which is no key, and to the user: which files are read."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from tensorguard.data import read
from tensorguard.data.read import Reading
from tensorguard.runners.local import driver
from tensorguard.training.run_log import Preparing
from tests.support.trainer.local_runs import Folder


class RecordingDataset:
    """A Ray Data set that pickles what its tasks would receive, as Ray does, and then raises.

    Attributes:
        pickled: what the tasks would receive.
        keys: content and mode of each file of a job key at that time, by name.
    """

    def __init__(self, private: Path) -> None:
        self._private = private
        self.pickled = b""
        self.keys: dict[str, tuple[bytes, int]] = {}

    def map_batches(self, function: Any, **arguments: Any) -> None:
        self.pickled = cloudpickle.dumps((function, arguments))
        files = self._private.glob("job-*.key")
        self.keys = {path.name: (path.read_bytes(), path.stat().st_mode & 0o777) for path in files}
        raise RuntimeError("the tasks do not run")

    def reading(self) -> Reading:
        """The data set as `read` returns it."""
        tables: Any = self
        return Reading(tables, lambda file, at: "")


@contextmanager
def no_ray(*_: Any, **__: Any) -> Iterator[None]:
    yield


def test_files_of_both_data_sets_are_reported_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)

    def listing(uri: str, *_: Any, report: Callable[[str], None], **__: Any) -> Reading:
        report(f"Reading {uri}")
        return RecordingDataset(folder.private).reading()

    monkeypatch.setattr(read, "read", listing)
    monkeypatch.setattr(driver, "local_ray", no_ray)
    folder.run("spec.dataset.uri=notes", "spec.evaluation={uri: held-out, visibility: Private}")
    stages = [record.what for record in folder.records if isinstance(record, Preparing)]
    files = [f"Reading {tmp_path / name}" for name in ("notes", "held-out")]
    assert stages == ["Starting Ray", "Loading the tokenizer", *files, "Reading and tokenising the data set"]


def test_ray_data_receives_the_path_of_the_job_key_and_not_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)
    dataset = RecordingDataset(folder.private)
    monkeypatch.setattr(read, "read", lambda *_, **__: dataset.reading())
    monkeypatch.setattr(driver, "local_ray", no_ray)
    assert folder.run().exit_code == 1
    [(name, (key, mode))] = dataset.keys.items()
    for form in (key, key.hex().encode(), base64.b64encode(key)):
        assert form not in dataset.pickled
    assert name.encode() in dataset.pickled
    assert mode == 0o600
