"""The files that a pod reads from its mounts, as the operator writes them, and the error for each wrong file."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.model import InitFrom
from tensafe_operator.children.access import job_key, key_digest
from tensafe_operator.children.configuration import config_map, digest
from tensafe_operator.children.rayjob import JOB_DIGEST_VARIABLE, JOB_PATH, KEY_PATH
from tensafe_operator.children.volumes import RUN_PATH
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.backends import LedgerLocation
from tensorguard.runners.pod.pod_files import ROOT_VARIABLE, PodFiles, PodFilesError
from tests.support.trainer.rank_harness import MANIFEST


@pytest.fixture
def pod_files(tmp_path: Path) -> PodFiles:
    """The files of a worker pod, from the operator's own builders."""
    text = MANIFEST.replace("MODEL", "/models/tiny").replace("CHECKPOINTS", "pvc://models/tiny/checkpoints")
    job, _ = resolve_job(load_manifest(text, ("spec.dataset.uri=pvc://notes", "spec.cluster.workers=1")))
    metadata = job.metadata.model_copy(update={"uid": "11-22", "namespace": "clinic"})
    job = job.model_copy(update={"metadata": metadata})
    key = job_key(job)
    written = config_map(job, 3, "tiny-ledger", "33-44", key_digest(key))
    for where, files in (
        (JOB_PATH, {name: text.encode() for name, text in written["data"].items()}),
        (KEY_PATH, {name: base64.b64decode(content) for name, content in key["data"].items()}),
    ):
        folder = tmp_path / where.removeprefix("/")
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    return PodFiles(tmp_path, digest(written))


def with_present_digest(pod_files: PodFiles) -> PodFiles:
    """The same files, with the digest that the operator would give them now."""
    files = (pod_files.root / JOB_PATH.removeprefix("/") / name for name in ("job.json", "place.json"))
    return PodFiles(pod_files.root, hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest())


def test_files_are_read_where_the_operator_mounts_them(pod_files: PodFiles) -> None:
    job = pod_files.job()
    assert (job.metadata.name, job.metadata.uid, job.spec.training.steps) == ("tiny", "11-22", 12)
    assert pod_files.ledger_location() == (LedgerLocation("clinic", "tiny", "tiny-ledger", "33-44"), 3)
    assert len(pod_files.key()) == 32
    assert pod_files.run == pod_files.root / RUN_PATH.removeprefix("/")
    assert resolve_job(job)[1].steps == 12


def test_adapter_to_start_from_is_read_from_its_pvc(pod_files: PodFiles) -> None:
    job = pod_files.job()
    steps = {"sampleRate": "0.1", "noiseMultiplier": "1", "steps": 4}
    start = InitFrom.model_validate({"uri": "pvc://models/2025/final", "earlierSteps": [steps]})
    spec = job.spec.model_copy(update={"lora": job.spec.lora.model_copy(update={"init_from": start})})
    mounted = pod_files._with_mounted_paths(job.model_copy(update={"spec": spec})).spec
    assert mounted.uris()["lora.initFrom"] == str(pod_files.mounts / "models/2025/final")
    assert mounted.uris()["dataset"] == job.spec.dataset.uri
    assert mounted.lora.init_from is not None
    assert mounted.lora.init_from.earlier_steps == start.earlier_steps


def test_pvc_uris_become_mounted_paths(pod_files: PodFiles) -> None:
    spec = pod_files.job().spec
    assert spec.dataset.uri == str(pod_files.root / "mnt/notes")
    assert spec.checkpoint.uri == str(pod_files.root / "mnt/models/tiny/checkpoints")


def test_checkpoint_on_a_pvc_is_published_with_its_pvc_uri(pod_files: PodFiles) -> None:
    store = CheckpointStore.for_job(pod_files.job(), str(pod_files.mounts))
    store.write("step-2", {"adapter": b"weights"})
    assert (pod_files.mounts / "models/tiny/checkpoints/step-2/adapter").read_bytes() == b"weights"
    assert store.uri("step-2") == "pvc://models/tiny/checkpoints/step-2"


def test_root_folder_can_be_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    monkeypatch.setenv(JOB_DIGEST_VARIABLE, "digest of what the operator wrote")
    assert str(PodFiles.here().key_file) == f"{KEY_PATH}/job.key"
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    assert PodFiles.here() == PodFiles(tmp_path, "digest of what the operator wrote")


@pytest.mark.parametrize(("value", "place"), [("1", "PodsWithTLS"), ("0", "Pods"), (None, "Pods")])
def test_statement_states_whether_ray_encrypts_its_messages(
    value: str | None, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    if value is not None:
        monkeypatch.setenv("RAY_USE_TLS", value)
    assert PodFiles().place == place


@pytest.mark.parametrize("name", ["job.json", "place.json"])
def test_job_that_the_operator_did_not_write_is_not_run(pod_files: PodFiles, name: str) -> None:
    path = pod_files.root / JOB_PATH.removeprefix("/") / name
    path.write_text(path.read_text().replace("tiny", "tinier"))
    for read in (pod_files.job, pod_files.ledger_location, pod_files.key):
        with pytest.raises(PodFilesError, match="does not hold what the operator wrote") as caught:
            read()
        assert caught.value.reason is Reason.INTERNAL_ERROR


def test_job_without_a_digest_is_not_run(pod_files: PodFiles) -> None:
    with pytest.raises(PodFilesError, match="TENSAFE_JOB_DIGEST is not set"):
        PodFiles(pod_files.root).job()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("job.json", None, "cannot be read"),
        ("job.json", "{", "is not a valid job"),
        ("job.json", '{"apiVersion": "tensafe.io/v1alpha1", "kind": "TenSafeTrainingJob"}', "spec"),
        ("place.json", None, "cannot be read"),
        ("place.json", "[]", "does not hold namespace"),
        ("place.json", '{"namespace": "clinic"}', "does not hold namespace"),
    ],
)
def test_error_names_the_file_and_the_fix(pod_files: PodFiles, name: str, content: str | None, text: str) -> None:
    path = pod_files.root / JOB_PATH.removeprefix("/") / name
    path.unlink()
    if content is not None:
        path.write_text(content)
        pod_files = with_present_digest(pod_files)
    with pytest.raises(PodFilesError) as caught:
        pod_files.job() if name == "job.json" else pod_files.ledger_location()
    sentence = str(caught.value)
    assert sentence.startswith(str(path))
    assert text in sentence
    assert "spec.cluster.image" in sentence
    assert "\n" not in sentence
    assert caught.value.reason is Reason.INVALID_MANIFEST


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), [("attempt", 0), ("attempt", True), ("attempt", "1"), ("ledger_uid", "")])
def test_ledger_location_with_an_invalid_value_is_refused(pod_files: PodFiles, field: str, value: object) -> None:
    path = pod_files.root / JOB_PATH.removeprefix("/") / "place.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(PodFilesError, match=f"has no usable {field}"):
        with_present_digest(pod_files).ledger_location()


def test_job_without_its_uid_is_refused(pod_files: PodFiles) -> None:
    path = pod_files.root / JOB_PATH.removeprefix("/") / "job.json"
    job = json.loads(path.read_text())
    del job["metadata"]["uid"]
    path.write_text(json.dumps(job))
    with pytest.raises(PodFilesError, match=r"has no metadata\.uid"):
        with_present_digest(pod_files).job()


@pytest.mark.parametrize("content", [None, b"short", bytes(32)])
def test_worker_without_the_right_key_does_not_start(pod_files: PodFiles, content: bytes | None) -> None:
    pod_files.key_file.unlink()
    if content is not None:
        pod_files.key_file.write_bytes(content)
    with pytest.raises(PodFilesError, match=r"key/job\.key .*; the Secret") as caught:
        pod_files.key()
    assert "short" not in str(caught.value)
