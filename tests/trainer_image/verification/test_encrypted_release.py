"""What a stranger, and what a recipient, can check of an encrypted release; and what `tensafe decrypt` writes."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import PeftConfig

from tensafe_api.statement.contents import canonical_json, digest
from tensorguard import storage
from tensorguard.checkpoint.encryption import parse_recipients, read_identities
from tensorguard.checkpoint.store import MANIFEST, CheckpointStore
from tensorguard.cli.exit_codes import INTERRUPTED
from tensorguard.cli.main import main
from tensorguard.signing.keys import new_identity, write_new
from tensorguard.signing.signer import SIGNATURE_FILES
from tensorguard.verification.checkpoint import verify_checkpoint
from tensorguard.verification.errors import NotVerified
from tests.support.programs.s3 import BUCKET, S3
from tests.support.trainer.releases import sign_again, trusted

WEIGHTS = "adapter_model.safetensors.age"


def refused(encrypted: Any, *, identity: Path | None = None) -> NotVerified:
    identities = read_identities(identity) if identity else None
    with pytest.raises(NotVerified) as error:
        verify_checkpoint(str(encrypted.final), trusted(encrypted), identities=identities)
    return error.value


def replace(encrypted: Any, name: str, content: bytes | None) -> None:
    """Exchange one file and sign all again, as the publisher could; None removes it."""
    if content is None:
        (encrypted.final / name).unlink()
    else:
        (encrypted.final / name).write_bytes(content)
    sign_again(encrypted.final, encrypted.private_key)


@pytest.mark.slow
def test_stranger_verifies_all_but_the_weights(encrypted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", str(encrypted.final), "--public-key", str(encrypted.key), "--ledger", str(encrypted.run)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    checked, not_checked = printed.split("not checked:")
    assert "statement.json: dp-accounting gives its ε" in checked and "about this adapter" not in checked
    assert "its weights are encrypted. A recipient passes --identity" in not_checked


@pytest.mark.slow
@pytest.mark.parametrize("how", ["option", "environment"])
def test_recipient_verifies_the_weights_too(
    encrypted: Any, how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["verify", str(encrypted.final), "--public-key", str(encrypted.key), "--ledger", str(encrypted.run)]
    if how == "option":
        command += ["--identity", str(encrypted.identity)]
    else:
        monkeypatch.setenv("TENSAFE_IDENTITY", str(encrypted.identity))
    before = sorted(path.name for path in encrypted.final.iterdir())
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "statement.json is about this adapter" in printed and "not checked:" not in printed
    assert "decrypts every encrypted file" in printed
    assert sorted(path.name for path in encrypted.final.iterdir()) == before


@pytest.mark.slow
def test_checkpoint_with_optimizer_state_is_verified(encrypted: Any) -> None:
    identities = read_identities(encrypted.identity)
    assert (encrypted.older / "optimizer.safetensors.age").exists()
    assert verify_checkpoint(str(encrypted.older), trusted(encrypted), identities=identities).trusted


@pytest.mark.slow
@pytest.mark.parametrize("with_identity", [True, False], ids=["a recipient", "a stranger"])
def test_every_changed_byte_of_the_encrypted_weights_is_noticed(encrypted: Any, with_identity: bool) -> None:
    path, trust = encrypted.final / WEIGHTS, trusted(encrypted)
    identities = read_identities(encrypted.identity) if with_identity else None
    content = path.read_bytes()
    offsets = [*range(400), *range(400, len(content), 29), len(content) - 1]  # the header of age whole
    for offset in offsets:
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1 << offset % 8]) + content[offset + 1 :])
        with pytest.raises(NotVerified):
            verify_checkpoint(str(encrypted.final), trust, identities=identities)
            pytest.fail(f"byte {offset} was changed, and it was not noticed")
    path.write_bytes(content)
    verify_checkpoint(str(encrypted.final), trust, identities=identities)
    assert len(offsets) > 1000


@pytest.mark.slow
def test_weights_that_were_encrypted_again_are_noticed(encrypted: Any) -> None:
    """Anyone can encrypt for a recipient. The signature covers the encrypted bytes."""
    recipients = parse_recipients([recipient_of(encrypted.identity)], "here")
    (encrypted.final / WEIGHTS).write_bytes(recipients.encrypt({"x": b"others"})["x.age"])
    files = {path.name: path.read_bytes() for path in encrypted.final.iterdir()}
    listed = {name: files[name] for name in files if name not in (MANIFEST, *SIGNATURE_FILES)}
    listing = {name: {"sha256": digest(content), "size": len(content)} for name, content in listed.items()}
    (encrypted.final / MANIFEST).write_bytes(canonical_json({"files": listing}))
    assert refused(encrypted).file == WEIGHTS


def test_statement_of_another_adapter_is_noticed_by_a_recipient(encrypted: Any) -> None:
    """Even where the publisher signed it by mistake. A stranger cannot see it."""
    recipients = parse_recipients([recipient_of(encrypted.identity)], "here")
    replace(encrypted, WEIGHTS, recipients.encrypt({"x": b"others"})["x.age"])
    verify_checkpoint(str(encrypted.final), trusted(encrypted))
    error = refused(encrypted, identity=encrypted.identity)
    assert error.file == "statement.json" and "is the statement of another adapter" in error.problem


def test_release_for_others_is_not_verified_with_our_identity(encrypted: Any, tmp_path: Path) -> None:
    write_new(tmp_path / "other", {"identity": (new_identity()[0], 0o600)})
    error = refused(encrypted, identity=tmp_path / "other" / "identity")
    assert error.file == WEIGHTS and "is not decrypted by" in error.problem


def test_file_that_should_be_encrypted_is_named(encrypted: Any) -> None:
    replace(encrypted, "optimizer.safetensors", b"state")
    assert refused(encrypted).problem == "is not encrypted, and other files of this checkpoint are"


def test_weights_in_both_forms_are_refused(encrypted: Any) -> None:
    replace(encrypted, "adapter_model.safetensors", b"others")
    assert refused(encrypted).file == "adapter_model.safetensors"


def test_recipient_and_stranger_verify_the_same_statement(encrypted: Any) -> None:
    """A second statement in encrypted form would show a recipient another claim than the one that is signed."""
    recipients = parse_recipients([recipient_of(encrypted.identity)], "here")
    other = (encrypted.final / "statement.json").read_bytes().replace(b'"name":"tiny"', b'"name":"huge"')
    replace(encrypted, "statement.json.age", recipients.encrypt({"x": other})["x.age"])
    error = refused(encrypted, identity=encrypted.identity)
    assert (error.file, error.problem) == ("statement.json.age", "is encrypted, and a job stores this file in clear")


def test_missing_weights_are_named(encrypted: Any) -> None:
    replace(encrypted, WEIGHTS, None)
    assert refused(encrypted).problem == "is missing"


def test_peft_loads_no_encrypted_bytes_as_weights(encrypted: Any) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(
        PeftConfig.from_pretrained(str(encrypted.final)).base_model_name_or_path, num_labels=2
    )
    with pytest.raises(ValueError, match=str(encrypted.final)):  # it finds no weights there, and asks the Hub
        PeftModel.from_pretrained(base, str(encrypted.final))


def recipient_of(identity: Path) -> str:
    return identity.read_text().splitlines()[0].removeprefix("# public key: ")


def decrypt(encrypted: Any, output: Path, *more: str) -> int:
    return main(
        ["decrypt", str(encrypted.final), "--identity", str(encrypted.identity), "--output", str(output), *more]
    )


def test_decrypted_adapter_is_what_peft_reads(encrypted: Any, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "new" / "adapter"
    previous = os.umask(0)
    try:
        assert decrypt(encrypted, output) == 0
    finally:
        os.umask(previous)
    assert stat.S_IMODE(output.stat().st_mode) == 0o700
    assert {path.name for path in output.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "statement.json",
        "statement.md",
        "trainer_state.json",
    }
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in output.iterdir()} == {"0o600"}
    statement = json.loads((output / "statement.json").read_text())
    assert digest((output / "adapter_model.safetensors").read_bytes()) == statement["hashes"]["adapter"]
    assert sorted(path.name for path in output.parent.iterdir()) == ["adapter"], "no temporary folder is left"
    assert f"decrypted to {output}" in capsys.readouterr().out


def test_optimizer_state_is_not_decrypted_to_a_disk(encrypted: Any, tmp_path: Path) -> None:
    command = ["decrypt", str(encrypted.older), "--identity", str(encrypted.identity)]
    assert main([*command, "--output", str(tmp_path / "adapter")]) == 0
    assert not list((tmp_path / "adapter").glob("optimizer*"))


@pytest.mark.usefixtures("foreground_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_stopped_decryption_leaves_nothing_in_clear(
    encrypted: Any, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        storage_write(*arguments, **options)
        assert any(path.name == "adapter_model.safetensors" for path in folder.rglob("*"))
        os.kill(os.getpid(), number)

    storage_write, folder = storage.write_files, tmp_path / "new"
    folder.mkdir()
    monkeypatch.setattr(storage, "write_files", stop)
    assert decrypt(encrypted, folder / "adapter") == INTERRUPTED
    assert not list(folder.iterdir())


@pytest.mark.parametrize("existing", ["a file", "an empty folder", "a folder", "a dangling link"])
def test_nothing_is_overwritten(encrypted: Any, tmp_path: Path, existing: str, capsys: Any) -> None:
    output = tmp_path / "adapter"
    match existing:
        case "a file":
            output.write_text("precious")
        case "a dangling link":
            output.symlink_to(tmp_path / "elsewhere")
        case _:
            output.mkdir()
            if existing == "a folder":
                (output / "adapter_model.safetensors").write_text("precious")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert decrypt(encrypted, output) == 1
    assert "exists, and nothing is overwritten" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_nothing_in_clear_is_written_into_the_encrypted_checkpoint(encrypted: Any, capsys: Any) -> None:
    assert decrypt(encrypted, encrypted.final / "plain") == 1
    assert "is in the encrypted checkpoint" in capsys.readouterr().err
    assert not (encrypted.final / "plain").exists()


def damage_weights(encrypted: Any) -> None:
    content = (encrypted.final / WEIGHTS).read_bytes()
    (encrypted.final / WEIGHTS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def other_weights(encrypted: Any) -> None:
    recipients = parse_recipients([recipient_of(encrypted.identity)], "here")
    replace(encrypted, WEIGHTS, recipients.encrypt({"x": b"others"})["x.age"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [(damage_weights, f"{WEIGHTS} is not what was written"), (other_weights, "that of another adapter")],
)
def test_changed_adapter_is_not_written(
    encrypted: Any, tmp_path: Path, capsys: Any, change: Callable[[Any], None], problem: str
) -> None:
    change(encrypted)
    assert decrypt(encrypted, tmp_path / "adapter") == 1
    assert problem in capsys.readouterr().err and not (tmp_path / "adapter").exists()


def test_what_cannot_be_decrypted_is_reported(
    encrypted: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENSAFE_IDENTITY", raising=False)
    write_new(tmp_path / "other", {"identity": (new_identity()[0], 0o600)})
    output, identity = ["--output", str(tmp_path / "adapter")], ["--identity", str(tmp_path / "other" / "identity")]
    cases = [
        ([str(encrypted.final), *output], 2, "no identity: pass --identity FILE, or set TENSAFE_IDENTITY"),
        ([str(encrypted.final), *identity, *output], 1, "does not decrypt"),
        ([str(tmp_path / "nowhere"), *identity, *output], 2, "is no complete checkpoint: it has no manifest.json"),
        ([str(encrypted.final), "--identity", str(tmp_path / "absent"), *output], 2, "absent cannot be read"),
    ]
    for arguments, code, message in cases:
        assert main(["decrypt", *arguments]) == code
        assert message in capsys.readouterr().err
    assert not (tmp_path / "adapter").exists()


@pytest.mark.slow
def test_release_in_clear_is_copied_and_not_decrypted(published: Any, tmp_path: Path, capsys: Any) -> None:
    write_new(tmp_path / "own", {"identity": (new_identity()[0], 0o600)})
    command = ["decrypt", str(published.final), "--identity", str(tmp_path / "own" / "identity")]
    assert main([*command, "--output", str(tmp_path / "adapter")]) == 1
    assert "is not encrypted: copy its folder" in capsys.readouterr().err


@pytest.mark.slow
def test_release_in_a_bucket_is_verified_and_decrypted(s3_bucket: S3, encrypted: Any, tmp_path: Path) -> None:
    place, store = f"s3://{BUCKET}/claims-encrypted/final", CheckpointStore(f"s3://{BUCKET}/claims-encrypted")
    for path in encrypted.final.iterdir():
        store._fs.pipe_file(f"{BUCKET}/claims-encrypted/final/{path.name}", path.read_bytes())
    identity = ["--identity", str(encrypted.identity)]
    assert main(["verify", place, "--public-key", str(encrypted.key), *identity]) == 0
    before = s3_bucket.objects("claims-encrypted/")
    assert main(["decrypt", place, *identity, "--output", str(tmp_path / "adapter")]) == 0
    assert s3_bucket.objects("claims-encrypted/") == before
