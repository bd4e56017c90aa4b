"""Checkpoints that a run encrypts: nothing readable reaches the storage, and what a resume needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyrage
import pytest
import torch
from safetensors.torch import load, save

from tensorguard.checkpoint import store as store_module
from tensorguard.checkpoint.encryption import READABLE, read_decrypted, read_identities
from tensorguard.checkpoint.layout import ADAPTER_WEIGHTS
from tensorguard.checkpoint.optimizer_state import OPTIMIZER
from tensorguard.models.adapter import adapter_state
from tensorguard.signing.keys import new_identity, write_new
from tensorguard.training.worker import Checkpointer
from tests.support.programs.s3 import BUCKET, S3
from tests.support.trainer.killed_runs import train_until_killed
from tests.support.trainer.rank_harness import Job

STEP_4 = "step-000004-a1i1"
MARK = np.float32(-1.1020885e-19)
"""A number that no training produces."""
RUN_OF_BYTES = 32


def make_identity(folder: Path) -> tuple[Path, str]:
    """The file of a new identity, and its recipient."""
    content, recipient = new_identity()
    write_new(folder, {"age-identity.txt": (content, 0o600)})
    return folder / "age-identity.txt", recipient


def make_job(folder: Path, *overrides: str, recipients: int = 1) -> Job:
    """A job of six steps that encrypts; the identities of its recipients are in `keys0`, `keys1`, ..."""
    identities = [make_identity(folder / f"keys{number}") for number in range(recipients)]
    job = Job.make(
        folder / "run",
        "spec.cluster.workers=1",
        "spec.training.steps=6",
        "spec.checkpoint.everySteps=2",
        "spec.training.microBatchSize=32",
        f"spec.checkpoint.encryption={json.dumps({'recipients': [recipient for _, recipient in identities]})}",
        *overrides,
    )
    job.identity = identities[0][0]
    return job


@pytest.fixture(scope="module")
def broken_once(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job for two recipients, killed after the checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("encrypted")
    job = make_job(folder, recipients=2)
    job.identity = None
    train_until_killed(job)
    shutil.copytree(job.directory, folder / "copy")
    return job


@pytest.fixture
def broken(broken_once: Job) -> Job:
    shutil.rmtree(broken_once.directory)
    shutil.copytree(broken_once.directory.with_name("copy"), broken_once.directory)
    broken_once.attempt, broken_once.identity = 1, None
    return broken_once


def identity(job: Job, number: int) -> Path:
    return job.directory.with_name(f"keys{number}") / "age-identity.txt"


def refused(job: Job, reason: str = "DecryptionFailed") -> str:
    """Run the next attempt, which must leave the ledger as it was; return its message."""
    head = job.ledger().head
    job.train_alone()
    assert (job.ended().attempt, job.ended().reason) == (job.attempt, reason), job.ended().message
    assert job.ledger().head == head
    return job.ended().message


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_run_resumes_with_the_identity_of_any_recipient(broken: Job, number: int) -> None:
    broken.identity = identity(broken, number)
    broken.train_alone()
    assert broken.ended().reason == "Completed", broken.ended().message
    assert [(charge.attempt, charge.steps) for charge in broken.ledger().charges] == [(1, 6), (2, 2)]


@pytest.mark.slow
def test_resumed_weights_and_optimizer_state_are_those_that_were_encrypted(broken: Job) -> None:
    """AdamW counts its steps: a resume without its state would count only the last ones."""
    secret = identity(broken, 0)
    broken.identity = secret
    seen: list[dict[str, torch.Tensor]] = []
    restore = "tensorguard.training.worker.restore_checkpoint"
    with pytest.MonkeyPatch.context() as patch:
        from tensorguard.training.checkpointing import restore_checkpoint

        def restoring(store: Any, name: str, expected: str, model: Any, optimizer: Any, identities: Any) -> Any:
            state = restore_checkpoint(store, name, expected, model, optimizer, identities)
            seen.append(adapter_state(model))
            counts = {float(each["step"]) for each in optimizer.state_dict()["state"].values()}
            assert counts == {4.0}
            return state

        patch.setattr(restore, restoring)
        broken.train_alone()
    saved = load(read_decrypted(broken.store(), STEP_4, read_identities(secret))[ADAPTER_WEIGHTS])
    assert all(torch.equal(seen[0][key], saved[key]) for key in saved)


@pytest.mark.slow
def test_resume_without_an_identity_names_what_is_missing(broken: Job) -> None:
    message = refused(broken)
    assert f"{STEP_4} is encrypted, and there is no identity" in message and "identitySecretName" in message


@pytest.mark.slow
def test_resume_with_the_identity_of_another_is_refused(broken: Job, tmp_path: Path) -> None:
    broken.identity, _ = make_identity(tmp_path / "other")
    message = refused(broken, "InvalidManifest")
    assert "has no identity of the recipients in spec.checkpoint.encryption" in message


def test_checkpoint_for_other_recipients_is_not_resumed(broken: Job, tmp_path: Path) -> None:
    """The recipients were changed between two attempts, which only a local run allows."""
    broken.identity, recipient = make_identity(tmp_path / "other")
    checkpoint = broken.job.spec.checkpoint
    assert checkpoint.encryption is not None
    changed = checkpoint.encryption.model_copy(update={"recipients": (recipient,)})
    with_others(broken, checkpoint.model_copy(update={"encryption": changed}))
    try:
        assert "does not decrypt adapter_model.safetensors.age" in refused(broken)
    finally:
        with_others(broken, checkpoint)


def test_run_that_encrypts_does_not_continue_in_clear(broken: Job) -> None:
    broken.identity = identity(broken, 0)
    checkpoint = broken.job.spec.checkpoint
    with_others(broken, checkpoint.model_copy(update={"encryption": None}))
    try:
        message = refused(broken, "ConfigurationChanged")
        assert message.startswith("spec.checkpoint.encryption: ") and "resume with the job.yaml of that run" in message
    finally:
        with_others(broken, checkpoint)


def with_others(job: Job, checkpoint: Any) -> None:
    job.job = job.job.model_copy(update={"spec": job.job.spec.model_copy(update={"checkpoint": checkpoint})})


def test_unusable_identity_ends_the_attempt_before_the_ledger_is_acquired(broken: Job, tmp_path: Path) -> None:
    broken.identity = tmp_path / "absent.txt"
    assert "absent.txt cannot be read" in refused(broken, "InvalidManifest")


@pytest.mark.slow
def test_run_without_an_identity_trains_to_its_end(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.identity = None
    job.train_alone()
    assert job.ended().reason == "Completed"


def test_mistyped_recipient_ends_the_attempt_before_the_first_charge(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    checkpoint = job.job.spec.checkpoint
    assert checkpoint.encryption is not None
    (right,) = checkpoint.encryption.recipients
    wrong = right[:-1] + ("q" if right[-1] != "q" else "p")
    encryption = checkpoint.encryption.model_copy(update={"recipients": (wrong,)})
    with_others(job, checkpoint.model_copy(update={"encryption": encryption}))
    assert f"spec.checkpoint.encryption.recipients: {wrong} is not a recipient" in refused(job, "InvalidManifest")


def test_released_weights_are_those_of_the_statement(broken: Job) -> None:
    broken.identity = identity(broken, 0)
    broken.train_alone()
    stored = broken.store().read("final", broken.ledger().checkpoints[-1].digest)
    assert stored.keys() == {*READABLE, f"{ADAPTER_WEIGHTS}.age"}
    files = read_decrypted(broken.store(), "final", read_identities(identity(broken, 1)))
    assert json.loads(files["statement.json"])["hashes"]["adapter"] == store_module.digest(files[ADAPTER_WEIGHTS])
    assert "tensafe decrypt" in files["README.md"].decode()


class Watch:
    """Every byte that is handed to a disk or to S3 while a job runs, and what of it a reader could use."""

    def __init__(self, patch: pytest.MonkeyPatch, folders: Callable[[], list[Path]]) -> None:
        self._folders = folders
        self.secrets: list[bytes] = []
        self.stored: dict[str, bytes] = {}
        save_checkpoint = Checkpointer.save

        def marking(checkpointer: Checkpointer, step: int, *, final: bool = False) -> Any:
            """Put distinctive weights and state in place of those of the training, and note what they look like."""
            with torch.no_grad():
                for parameter in (each for each in checkpointer.model.parameters() if each.requires_grad):
                    parameter.copy_(
                        torch.arange(parameter.numel()).reshape(parameter.shape) * 1e-9 + float(MARK) * step
                    )
                for state in checkpointer.optimizer.state.values():
                    state["exp_avg"].fill_(float(MARK))
            tensors = adapter_state(checkpointer.model)
            self.secrets += [tensor.numpy().tobytes() for tensor in tensors.values()]
            self.secrets += [save(tensors)[:RUN_OF_BYTES], np.full(8, MARK).tobytes()]
            try:
                return save_checkpoint(checkpointer, step, final=final)
            finally:
                self.look()

        patch.setattr(Checkpointer, "save", marking)

    def look(self) -> None:
        """Read every file that is now in the folders."""
        for folder in self._folders():
            for path in (each for each in folder.rglob("*") if each.is_file()):
                self.stored[f"{path}@{len(self.secrets)}"] = path.read_bytes()

    def readable(self) -> Iterator[str]:
        """The files in which a part of a weight, or a header of safetensors, is."""
        parts = [secret[:RUN_OF_BYTES] for secret in self.secrets]
        for place, content in self.stored.items():
            if any(part in content for part in parts) or b'"dtype":"F32"' in content or b"base_model.model." in content:
                yield place


@pytest.mark.slow
def test_watch_sees_what_a_run_without_encryption_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path)
    with_others(job, job.job.spec.checkpoint.model_copy(update={"encryption": None}))
    watch = Watch(monkeypatch, lambda: [job.directory / "checkpoints"])
    job.train_alone()
    assert {Path(place.split("@")[0]).name for place in watch.readable()} == {ADAPTER_WEIGHTS, OPTIMIZER}


@pytest.mark.slow
def test_nothing_readable_reaches_a_disk_during_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary folders included: each write to the folder of checkpoints is seen before it is renamed."""
    job = make_job(tmp_path)
    watch = Watch(monkeypatch, lambda: [job.directory / "checkpoints", job.private.path])
    synced = store_module.sync_directory

    def looking(directory: Path) -> None:
        watch.look()
        synced(directory)

    monkeypatch.setattr(store_module, "sync_directory", looking)
    train_until_killed(job)
    job.train_alone()
    watch.look()
    assert job.ended().reason == "Completed", job.ended().message
    assert any(".unfinished-" in place for place in watch.stored), "temporary folders were seen"
    assert sorted(watch.readable()) == []
    assert {path.name for path in (job.directory / "checkpoints").iterdir()} >= {"final", STEP_4}


@pytest.mark.slow
def test_nothing_readable_reaches_a_bucket_during_a_whole_run(
    tmp_path: Path, s3_bucket: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from the disk of the server after each checkpoint and at the end. The run is killed once, and resumed."""
    uri = f"spec.checkpoint.uri=s3://{BUCKET}/encrypted/triage"
    job = make_job(tmp_path, uri, f"spec.storage.endpoint={s3_bucket.endpoint}")
    watch = Watch(monkeypatch, lambda: [s3_bucket.root, job.private.path])
    train_until_killed(job)
    job.train_alone()
    watch.look()
    assert job.ended().reason == "Completed", job.ended().message
    assert sorted(watch.readable()) == []
    objects = s3_bucket.objects("encrypted/")
    assert f"encrypted/triage/final/{ADAPTER_WEIGHTS}.age" in objects
    assert not [key for key in objects if key.endswith(".safetensors")]
    secret = pyrage.x25519.Identity.from_str(identity(job, 0).read_text().splitlines()[-1])
    stored = (s3_bucket.root / BUCKET / f"encrypted/triage/final/{ADAPTER_WEIGHTS}.age").read_bytes()
    assert any(part[:RUN_OF_BYTES] in pyrage.decrypt(stored, [secret]) for part in watch.secrets)
