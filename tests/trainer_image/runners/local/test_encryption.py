"""Encrypted checkpoints of a local run: what is refused before anything is spent, and a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorguard.cli.main import main
from tensorguard.runners.local.encryption import check_encryption
from tensorguard.runners.nodes.node_files import NodeFiles
from tensorguard.runners.preflight import RunRefused
from tensorguard.signing.keys import new_identity, write_new
from tests.support.rule_examples import RECIPIENT
from tests.support.trainer.local_runs import Folder, reason, refusal, stopped


def for_(*recipients: str) -> str:
    return f"spec.checkpoint.encryption={json.dumps({'recipients': recipients})}"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, str]:
    """The file of an identity, and its recipient."""
    content, recipient = new_identity()
    write_new(tmp_path / "keys", {"identity": (content, 0o600)})
    return tmp_path / "keys" / "identity", recipient


def stopped_encrypted(folder: Folder, recipient: str) -> None:
    """A run that encrypts, and that was stopped in its fourth step."""
    folder.stop_at = 3
    assert folder.run(for_(recipient)).exit_code == 130
    folder.stop_at = None


@pytest.mark.slow
def test_encrypted_run_resumes_with_its_identity(folder: Folder, keys: tuple[Path, str]) -> None:
    identity, recipient = keys
    stopped_encrypted(folder, recipient)
    folder.identity = identity
    assert folder.run(for_(recipient), resume=True).exit_code == 0
    stored = [path.name for path in (folder.base / "checkpoints").rglob("*")]
    assert "adapter_model.safetensors.age" in stored and "adapter_model.safetensors" not in stored


def test_resume_without_an_identity_is_refused(folder: Folder, keys: tuple[Path, str]) -> None:
    stopped_encrypted(folder, keys[1])
    message = str(refusal(folder, for_(keys[1]), resume=True))
    assert message == "the checkpoint to resume from is encrypted: pass --identity FILE, or set TENSAFE_IDENTITY"


@pytest.mark.slow
def test_resume_without_encryption_is_refused(folder: Folder, keys: tuple[Path, str]) -> None:
    folder.identity = keys[0]
    stopped_encrypted(folder, keys[1])
    message = str(refusal(folder, resume=True))
    assert message.startswith("spec.checkpoint.encryption: ") and "resume with its job.yaml" in message


@pytest.mark.slow
def test_run_in_clear_may_encrypt_after_a_resume(folder: Folder, keys: tuple[Path, str]) -> None:
    stopped(folder)
    assert folder.run(for_(keys[1]), resume=True).exit_code == 0
    assert (folder.base / "checkpoints/final/adapter_model.safetensors.age").exists()


def test_identity_of_another_is_refused(folder: Folder, keys: tuple[Path, str]) -> None:
    folder.identity = keys[0]
    message = str(refusal(folder, for_(new_identity()[1])))
    assert message.startswith("--identity: ") and "has no identity of the recipients" in message


def test_identity_that_cannot_be_read_is_refused(folder: Folder, keys: tuple[Path, str], tmp_path: Path) -> None:
    folder.identity = tmp_path / "absent"
    assert "--identity: " in str(refusal(folder, for_(keys[1])))


def test_config_map_is_refused(folder: Folder) -> None:
    error = refusal(folder, "spec.checkpoint.encryption={recipientsConfigMap: readers}")
    assert str(error).startswith("spec.checkpoint.encryption.recipientsConfigMap: a local run reads no ConfigMap")
    assert not (folder.base / "checkpoints").exists()


def test_mistyped_recipient_is_refused(folder: Folder) -> None:
    error = refusal(folder, for_(f"{RECIPIENT[:-1]}q"))
    assert error.path == "spec.checkpoint.encryption.recipients" and "copy the whole" in str(error)


def test_identity_of_the_driver_is_refused_on_several_machines(
    folder: Folder, keys: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node reads its own, which the variable names there."""
    job = folder.run(for_(keys[1])).job
    from tensorguard.checkpoint.store import CheckpointStore

    store = CheckpointStore.for_job(job)
    monkeypatch.delenv("TENSAFE_IDENTITY", raising=False)
    with pytest.raises(RunRefused, match="set TENSAFE_IDENTITY on each node before `ray start`"):
        check_encryption(job, store, None, keys[0], on_nodes=True)
    monkeypatch.setenv("TENSAFE_IDENTITY", str(keys[0]))
    check_encryption(job, store, None, keys[0], on_nodes=True)
    assert NodeFiles("", 1, "", "", "", "").identity_file(job) == keys[0]


@pytest.mark.slow
def test_wrong_identity_of_the_worker_ends_the_attempt(folder: Folder, keys: tuple[Path, str], tmp_path: Path) -> None:
    """The recipients were changed between two attempts, so the driver cannot see it."""
    stopped_encrypted(folder, keys[1])
    content, recipient = new_identity()
    write_new(tmp_path / "other", {"identity": (content, 0o600)})
    folder.identity = tmp_path / "other" / "identity"
    why, message = reason(folder.run(for_(recipient), resume=True))
    assert why == "DecryptionFailed" and "does not decrypt adapter_model.safetensors.age" in str(message)


def test_validate_warns_without_an_identity_and_refuses_a_mistyped_recipient(
    folder: Folder, keys: tuple[Path, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tests.support.trainer.rank_harness import MANIFEST

    manifest = tmp_path / "job.yaml"
    manifest.write_text(MANIFEST.replace("MODEL", str(folder.base / "model")).replace("CHECKPOINTS", "checkpoints"))
    assert main(["validate", str(manifest), "--set", for_(keys[1])]) == 0
    assert "without identitySecretName, no attempt in a cluster can resume" in capsys.readouterr().err
    with_secret = json.dumps({"recipients": [keys[1]], "identitySecretName": "mine"})
    assert main(["validate", str(manifest), "--set", f"spec.checkpoint.encryption={with_secret}"]) == 0
    warned = capsys.readouterr().err
    assert "spec.checkpoint.encryption.identitySecretName: no effect in a local run" in warned
    assert "without identitySecretName" not in warned
    assert main(["validate", str(manifest), "--set", for_(f"{RECIPIENT[:-1]}q")]) == 2
    assert capsys.readouterr().err.startswith("spec.checkpoint.encryption.recipients: age1")
