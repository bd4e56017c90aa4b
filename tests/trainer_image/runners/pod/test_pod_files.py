"""What a pod reads from its mounts, as the operator writes it, and what it says where a file is not as it should be."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from e2e.platform.trainer.rank_harness import MANIFEST
from tensafe_api.manifest import load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensafe_operator.children.access import job_key, key_digest
from tensafe_operator.children.configuration import config_map, digest
from tensafe_operator.children.rayjob import JOB_DIGEST_VARIABLE, JOB_PATH, KEY_PATH, RUN_PATH
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.backends import LedgerLocation
from tensorguard.runners.pod.pod_files import ROOT_VARIABLE, PodFiles, PodFilesError


@pytest.fixture
def mounted(tmp_path: Path) -> PodFiles:
    """The mounts of a worker pod, from the operator's own builders."""
    text = MANIFEST.replace("MODEL", "/models/tiny").replace("CHECKPOINTS", "pvc://models/tiny/checkpoints")
    job, _ = resolve_job(load_manifest(text, ("spec.dataset.uri=pvc://notes", "spec.cluster.workers=1")))
    metadata = job.metadata.model_copy(update={"uid": "11-22", "namespace": "clinic"})
    job = job.model_copy(update={"metadata": metadata})
    key = job_key(job)
    told = config_map(job, 3, "tiny-ledger", "33-44", key_digest(key))
    for where, files in (
        (JOB_PATH, {name: text.encode() for name, text in told["data"].items()}),
        (KEY_PATH, {name: base64.b64decode(content) for name, content in key["data"].items()}),
    ):
        folder = tmp_path / where.removeprefix("/")
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    return PodFiles(tmp_path, digest(told))


def as_if_written(mounted: PodFiles) -> PodFiles:
    """The same, had the operator written what is there now."""
    files = (mounted.root / JOB_PATH.removeprefix("/") / name for name in ("job.json", "place.json"))
    return PodFiles(mounted.root, hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest())


def test_files_are_read_where_the_operator_mounts_them(mounted: PodFiles) -> None:
    job = mounted.job()
    assert (job.metadata.name, job.metadata.uid, job.spec.training.steps) == ("tiny", "11-22", 12)
    assert mounted.ledger_location() == (LedgerLocation("clinic", "tiny", "tiny-ledger", "33-44"), 3)
    assert len(mounted.key()) == 32
    assert mounted.run == mounted.root / RUN_PATH.removeprefix("/")
    assert resolve_job(job)[1].steps == 12


def test_pvc_uris_become_mounted_paths(mounted: PodFiles) -> None:
    spec = mounted.job().spec
    assert spec.dataset.uri == str(mounted.root / "mnt/notes")
    assert spec.checkpoint.uri == str(mounted.root / "mnt/models/tiny/checkpoints")


def test_checkpoint_on_a_pvc_is_published_with_its_pvc_uri(mounted: PodFiles) -> None:
    store = CheckpointStore.for_job(mounted.job(), str(mounted.mounts))
    store.write("step-2", {"adapter": b"weights"})
    assert (mounted.mounts / "models/tiny/checkpoints/step-2/adapter").read_bytes() == b"weights"
    assert store.uri("step-2") == "pvc://models/tiny/checkpoints/step-2"


def test_root_folder_can_be_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    monkeypatch.setenv(JOB_DIGEST_VARIABLE, "of what the operator wrote")
    assert str(PodFiles.here().key_file) == f"{KEY_PATH}/job.key"
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    assert PodFiles.here() == PodFiles(tmp_path, "of what the operator wrote")


@pytest.mark.parametrize("name", ["job.json", "place.json"])
def test_job_that_the_operator_did_not_write_is_not_run(mounted: PodFiles, name: str) -> None:
    path = mounted.root / JOB_PATH.removeprefix("/") / name
    path.write_text(path.read_text().replace("tiny", "tinier"))
    for read in (mounted.job, mounted.ledger_location, mounted.key):
        with pytest.raises(PodFilesError, match="does not hold what the operator wrote") as caught:
            read()
        assert caught.value.reason is Reason.INTERNAL_ERROR


def test_job_without_a_digest_is_not_run(mounted: PodFiles) -> None:
    with pytest.raises(PodFilesError, match="TENSAFE_JOB_DIGEST is not set"):
        PodFiles(mounted.root).job()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("job.json", None, "cannot be read"),
        ("job.json", "{", "is not a valid job"),
        ("job.json", '{"apiVersion": "tensafe.io/v1alpha1", "kind": "TenSafeTrainingJob"}', "spec"),
        ("place.json", None, "cannot be read"),
        ("place.json", "[]", "does not hold namespace"),
        ("place.json", '{"namespace": "clinic"}', "does not hold namespace"),
    ],
)
def test_error_names_the_file_and_the_fix(mounted: PodFiles, name: str, content: str | None, words: str) -> None:
    path = mounted.root / JOB_PATH.removeprefix("/") / name
    path.unlink()
    if content is not None:
        path.write_text(content)
        mounted = as_if_written(mounted)
    with pytest.raises(PodFilesError) as caught:
        mounted.job() if name == "job.json" else mounted.ledger_location()
    sentence = str(caught.value)
    assert sentence.startswith(str(path))
    assert words in sentence
    assert "spec.cluster.image" in sentence
    assert "\n" not in sentence
    assert caught.value.reason is Reason.INVALID_MANIFEST


@pytest.mark.parametrize(("field", "value"), [("attempt", 0), ("attempt", True), ("attempt", "1"), ("ledger_uid", "")])
def test_ledger_location_with_an_invalid_value_is_refused(mounted: PodFiles, field: str, value: object) -> None:
    path = mounted.root / JOB_PATH.removeprefix("/") / "place.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(PodFilesError, match=f"has no usable {field}"):
        as_if_written(mounted).ledger_location()


def test_job_without_its_uid_is_refused(mounted: PodFiles) -> None:
    path = mounted.root / JOB_PATH.removeprefix("/") / "job.json"
    job = json.loads(path.read_text())
    del job["metadata"]["uid"]
    path.write_text(json.dumps(job))
    with pytest.raises(PodFilesError, match=r"has no metadata\.uid"):
        as_if_written(mounted).job()


@pytest.mark.parametrize("content", [None, b"short", bytes(32)])
def test_worker_without_the_right_key_does_not_start(mounted: PodFiles, content: bytes | None) -> None:
    mounted.key_file.unlink()
    if content is not None:
        mounted.key_file.write_bytes(content)
    with pytest.raises(PodFilesError, match=r"key/job\.key .*; the Secret") as caught:
        mounted.key()
    assert "short" not in str(caught.value)
