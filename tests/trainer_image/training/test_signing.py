"""Checkpoints that a run signs, the status that says so, and what a run that signs resumes from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorguard.cli.main import main
from tensorguard.signing import keys
from tensorguard.signing.keys import read_signing_key
from tensorguard.signing.signer import SIGNATURE_FILES
from tests.support.programs.sigstore import IDENTITY, Sigstore
from tests.support.soft_hsm import SoftHSM
from tests.support.trainer.killed_runs import train_until_killed
from tests.support.trainer.rank_harness import Job

Break = Callable[[int | None], None]


def make_key(folder: Path) -> Path:
    private, public, _ = keys.new_signing_key()
    keys.write_new(folder, {keys.SIGNING_KEY: (private, 0o600), keys.PUBLIC_KEY: (public.encode(), 0o644)})
    return folder / keys.SIGNING_KEY


@pytest.fixture(scope="module")
def signed_once(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that signs its checkpoints, broken after those of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("signed")
    job = Job.make(
        folder / "run",
        "spec.cluster.workers=1",
        "spec.training.steps=6",
        "spec.checkpoint.everySteps=2",
        "spec.training.microBatchSize=32",
    )
    job.signing_key = make_key(folder / "keys")
    train_until_killed(job)
    shutil.copytree(job.directory, folder / "copy")
    return job


@pytest.fixture
def signed(signed_once: Job) -> Job:
    shutil.rmtree(signed_once.directory)
    shutil.copytree(signed_once.directory.with_name("copy"), signed_once.directory)
    signed_once.attempt = 1
    signed_once.signing_key = signed_once.directory.with_name("keys") / keys.SIGNING_KEY
    return signed_once


def newest(job: Job) -> Path:
    return job.directory / "checkpoints" / "step-000004-a1i1"


def refused(job: Job) -> str:
    """Run the next attempt, which must charge nothing and end for its signature; return its message."""
    charged = job.ledger().steps_charged
    job.train_alone()
    assert job.ledger().steps_charged == charged
    assert (job.ended().attempt, job.ended().reason) == (job.attempt, "SignatureInvalid")
    return job.ended().message


@pytest.mark.slow
def test_ledger_and_status_name_the_signer(signed: Job) -> None:
    assert signed.signing_key is not None
    fingerprint = read_signing_key(signed.signing_key).fingerprint
    signed.train_alone()
    assert signed.ended().reason == "Completed"
    assert [each.signer for each in signed.ledger().checkpoints] == [fingerprint] * 3
    assert [each.signed for each in signed.status().checkpoints] == [True, True, True]


@pytest.mark.slow
def test_run_without_a_key_signs_nothing_and_says_so(signed: Job) -> None:
    signed.signing_key = None
    signed.train_alone()
    assert [each.signed for each in signed.status().checkpoints] == [True, True, False]
    final = signed.directory / "checkpoints" / "final"
    assert not {path.name for path in final.iterdir()} & set(SIGNATURE_FILES)


@pytest.mark.slow
def test_command_of_model_signing_verifies_a_checkpoint(signed: Job) -> None:
    public = signed.directory.with_name("keys") / keys.PUBLIC_KEY

    def verify() -> subprocess.CompletedProcess[str]:
        command = Path(sys.executable).with_name("model_signing")
        options = ["--signature", newest(signed) / "model.sig", "--public_key", public]
        return subprocess.run(
            [command, "verify", "key", *options, newest(signed)], capture_output=True, text=True, check=False
        )

    assert verify().stdout == "Verification succeeded\n"
    for path in sorted(newest(signed).iterdir()):
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        if path.name != "model.sig":  # its own signature does not cover spaces after it
            assert verify().returncode == 1, path.name
        path.write_bytes(content)
    (newest(signed) / "extra").write_text("x")
    assert "Extra files" in verify().stderr


@pytest.mark.slow
@pytest.mark.parametrize("file", SIGNATURE_FILES)
def test_checkpoint_without_a_signature_is_refused(signed: Job, file: str) -> None:
    (newest(signed) / file).unlink()
    assert f"{file}: is missing, so the checkpoint is not signed" in refused(signed)


@pytest.mark.slow
def test_checkpoint_signed_by_another_key_is_refused(signed: Job, tmp_path: Path) -> None:
    signed.signing_key = make_key(tmp_path / "other")
    message = refused(signed)
    assert "was signed by another key" in message and "resume with the key that signed it" in message


def test_signature_of_another_checkpoint_is_refused(signed: Job) -> None:
    for file in SIGNATURE_FILES:
        shutil.copy(newest(signed).with_name("step-000002-a1i1") / file, newest(signed) / file)
    refused(signed)


@pytest.mark.parametrize("file", SIGNATURE_FILES)
def test_changed_signature_is_refused(signed: Job, file: str) -> None:
    content = bytearray((newest(signed) / file).read_bytes())
    content[len(content) // 2] ^= 1
    (newest(signed) / file).write_bytes(content)
    assert file in refused(signed)


@pytest.mark.slow
def test_unsigned_checkpoint_is_refused_where_the_run_signs(signed: Job, tmp_path: Path) -> None:
    """A later attempt ran without a key."""
    signed.signing_key = None
    signed.train_alone()
    signed.signing_key = make_key(tmp_path / "keys")
    assert "is not signed" in refused(signed)


def test_refused_checkpoint_can_be_moved_away(signed: Job) -> None:
    (newest(signed) / SIGNATURE_FILES[0]).unlink()
    shutil.move(newest(signed), signed.directory / "moved")
    signed.train_alone()
    assert signed.ended().reason == "Completed"
    assert signed.ledger().steps_recharged == 4


def test_unusable_key_ends_the_attempt_before_the_ledger_is_acquired(signed: Job, tmp_path: Path) -> None:
    signed.signing_key = tmp_path / "absent.pem"
    head = signed.ledger().head
    signed.train_alone()
    assert (signed.ended().reason, signed.ledger().head) == ("InvalidManifest", head)
    assert "absent.pem cannot be read" in signed.ended().message


@pytest.mark.parametrize("as_file", [False, True], ids=["uri", "file"])
def test_run_with_a_key_in_a_token_resumes_only_with_that_key(soft_hsm: SoftHSM, tmp_path: Path, as_file: bool) -> None:
    def location(label: str) -> str:
        uri = soft_hsm.uri(f"object={label}")
        (tmp_path / label).write_text(uri)
        return str(tmp_path / label) if as_file else uri

    soft_hsm.add_key("ours", b"\xa1")
    soft_hsm.add_key("other", b"\xa2")
    job = Job.make(
        tmp_path / "run", "spec.cluster.workers=1", "spec.training.steps=4", "spec.training.microBatchSize=32"
    )
    job.signing_key = location("ours")
    job.train_alone()
    assert job.ended().reason == "Completed"
    assert [each.signed for each in job.status().checkpoints] == [True, True]
    assert {each.signer for each in job.ledger().checkpoints} == {read_signing_key(location("ours")).fingerprint}

    job.signing_key = location("other")
    assert "was signed by another key" in refused(job)
    job.signing_key = location("absent")
    job.train_alone()
    assert (job.ended().reason, job.ledger().steps_charged) == ("InvalidManifest", 4)
    assert "the token has no private key of this name" in job.ended().message
    job.signing_key = location("ours")
    job.train_alone()
    assert (job.ended().reason, job.ledger().steps_charged) == ("Completed", 4)


@pytest.mark.nightly
def test_run_signed_by_an_identity_is_verified_and_resumed_by_that_identity_alone(
    identity: Sigstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job.make(
        tmp_path / "run", "spec.cluster.workers=1", "spec.training.steps=4", "spec.training.microBatchSize=32"
    )
    job.signing_key = f"sigstore:{identity.trust_config}"
    job.train_alone()
    assert job.ended().reason == "Completed"
    assert [each.signed for each in job.status().checkpoints] == [True, True]
    assert len({each.signer for each in job.ledger().checkpoints}) == 2, "each checkpoint has a key of its own"

    place = str(job.directory / "checkpoints" / "final")
    instance = ["--certificate-oidc-issuer", identity.provider.url, "--trust-config", str(identity.trust_config)]
    capsys.readouterr()
    command = ["verify", place, "--ledger", str(job.directory)]
    assert main([*command, "--certificate-identity", IDENTITY, *instance]) == 0
    assert f"are signed by {IDENTITY} (by {identity.provider.url})" in capsys.readouterr().out
    assert main([*command, "--certificate-identity", "other@clinic.example", *instance]) == 1
    assert "does not show that other@clinic.example signed it" in capsys.readouterr().err
    for options in (["--certificate-identity", IDENTITY], instance):
        assert main([*command, *options]) == 2
        assert "--certificate-oidc-issuer and --trust-config" in capsys.readouterr().err

    token = identity.provider.token("other@clinic.example")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token)
    assert f"{identity.trust_config} does not show that other@clinic.example signed it" in refused(job)
    monkeypatch.delenv("SIGSTORE_ID_TOKEN")
    job.train_alone()
    assert (job.ended().reason, job.ledger().steps_charged) == ("Completed", 4)
    for path in job.directory.rglob("*"):
        assert path.is_dir() or token.encode() not in path.read_bytes()
