"""Folders with any name: their paths are neither URIs nor patterns, wherever a run reads or writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensafe_api.manifest.text import load_manifest
from tensorguard.data.listing import files_at
from tensorguard.runners.local.earlier_run import MANIFEST
from tests.support.trainer.local_runs import Folder, refusal, stopped

NAMES = ("2024-01-31T12:00:00", "a b", "é#1?x=y&z", "50%41", "[ab]*", "a::b", "'\"$HOME`")
pytestmark = pytest.mark.parametrize("tmp_path", NAMES, indirect=True)


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / str(request.param)
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_run_and_resume_in_any_folder(folder: Folder) -> None:
    (folder.base / "data.jsonl").write_text("")
    stopped(folder)
    job = load_manifest(folder.output / MANIFEST)
    assert job.spec.dataset.uri == str(folder.base / "unused.jsonl")
    result = folder.run(resume=True)
    assert result.exit_code == 0
    assert result.job.status is not None and result.job.status.final_model is not None
    assert result.job.status.final_model.uri == f"file://{folder.base}/checkpoints/final"
    assert (folder.base / "checkpoints" / "final" / "manifest.json").exists()


@pytest.mark.slow
def test_only_what_the_manifest_has_is_a_pattern(folder: Folder) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (folder.base / name).write_text(json.dumps({"text": "w1", "label": 1}) + "\n")
    folder.run("spec.dataset.uri=*.jsonl")
    uri = load_manifest(folder.output / MANIFEST).spec.dataset.uri
    found = {path for path in files_at(uri, None, None) if path.endswith(".jsonl")}
    assert found == {f"file:{folder.base}/{name}.jsonl" for name in ("a", "b")}


def test_run_does_not_write_into_data_in_any_folder(folder: Folder) -> None:
    (folder.base / "data" / "inside").mkdir(parents=True)
    refused = refusal(folder, "spec.dataset.uri=data", output=folder.base / "data" / "inside")
    assert refused.path == "spec.dataset.uri"
