"""Files of a checkpoint that only recipients read, and what is accepted as a recipient and as an identity."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyrage
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from tensorguard.checkpoint.encryption import (
    READABLE,
    DecryptionFailed,
    Identities,
    RecipientInvalid,
    decrypt_files,
    parse_recipients,
    read_decrypted,
    read_identities,
)
from tensorguard.checkpoint.store import CheckpointAbsent, CheckpointCorrupt, CheckpointStore
from tensorguard.signing.base import KeyUnusable
from tensorguard.signing.keys import new_identity, write_new

SECRET = pyrage.x25519.Identity.generate()
RECIPIENT = str(SECRET.to_public())
EXAMPLE = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
OURS = Identities((SECRET,), "ours.txt")
OTHERS = Identities((pyrage.x25519.Identity.generate(),), "others.txt")
FILES = {"adapter_model.safetensors": b"weights", "optimizer.safetensors": b"state", "statement.json": b"{}"}

names = st.one_of(
    st.sampled_from(sorted(READABLE)), st.from_regex(r"[a-z_]{1,12}\.(safetensors|bin|json)", fullmatch=True)
)


@pytest.mark.slow
@given(st.dictionaries(names, st.binary(max_size=200_000), max_size=4), st.integers(0, 2))
def test_every_recipient_decrypts_what_was_encrypted(files: dict[str, bytes], reader: int) -> None:
    secrets = [pyrage.x25519.Identity.generate() for _ in range(3)]
    stored = parse_recipients([str(each.to_public()) for each in secrets], "here").encrypt(files)
    assert decrypt_files(stored, Identities((secrets[reader],), "reader"), "uri") == files
    for name, content in files.items():
        assert (stored.get(name) == content) == (name in READABLE)
        assert name in READABLE or len(content) < 16 or content not in stored[f"{name}.age"]


def test_encryption_of_the_same_files_differs() -> None:
    first, second = (parse_recipients([RECIPIENT], "here").encrypt(FILES) for _ in range(2))
    assert first["adapter_model.safetensors.age"] != second["adapter_model.safetensors.age"]


def test_others_decrypt_nothing_and_the_message_names_the_fix() -> None:
    stored = parse_recipients([RECIPIENT], "here").encrypt(FILES)
    with pytest.raises(DecryptionFailed, match=r"others\.txt does not decrypt .*pass an identity of one of its recip"):
        decrypt_files(stored, OTHERS, "s3://b/final")
    with pytest.raises(DecryptionFailed, match="--identity FILE or set TENSAFE_IDENTITY"):
        decrypt_files(stored, None, "s3://b/final")


def test_files_in_clear_need_no_identity() -> None:
    assert decrypt_files(FILES, None, "uri") == FILES


def test_file_that_exists_in_both_forms_is_refused() -> None:
    stored = parse_recipients([RECIPIENT], "here").encrypt(FILES)
    with pytest.raises(DecryptionFailed, match="in clear"):
        decrypt_files({**stored, "adapter_model.safetensors": b"other"}, OURS, "uri")


def test_every_changed_byte_is_noticed_by_age_itself() -> None:
    stored = parse_recipients([RECIPIENT], "here").encrypt({"a": bytes(300)})["a.age"]
    for offset in range(len(stored)):
        damaged = stored[:offset] + bytes([stored[offset] ^ 1]) + stored[offset + 1 :]
        with pytest.raises(DecryptionFailed):
            decrypt_files({"a.age": damaged}, OURS, "uri")
    for cut in (stored[:-1], stored + b"\n", b""):
        with pytest.raises(DecryptionFailed):
            decrypt_files({"a.age": cut}, OURS, "uri")


def test_files_are_read_by_their_plain_names(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    recipients = parse_recipients([RECIPIENT], "here")
    for name, files in (("clear", FILES), ("encrypted", recipients.encrypt(FILES))):
        written = store.write(name, files)
        assert read_decrypted(store, name, OURS, written) == FILES
        assert read_decrypted(store, name, OURS, only=("statement.json",)) == {"statement.json": b"{}"}
        assert read_decrypted(store, name, OURS, only=("optimizer.safetensors",)) == {"optimizer.safetensors": b"state"}
        with pytest.raises(CheckpointAbsent, match="lacks absent"):
            read_decrypted(store, name, OURS, only=("absent",))
    (tmp_path / "encrypted" / "optimizer.safetensors.age").write_bytes(recipients.encrypt({"x": b"state"})["x.age"])
    with pytest.raises(CheckpointCorrupt, match=r"optimizer\.safetensors\.age is not what was written"):
        read_decrypted(store, "encrypted", OURS)


def test_recipients_are_read_as_by_age() -> None:
    text = f"# of the clinic\n\n  {RECIPIENT}  \n# of the auditor\n{OTHERS.keys[0].to_public()}\n"
    recipients = parse_recipients(text.splitlines(), "readers")
    assert len(recipients.keys) == 2 and recipients.include(OURS) and recipients.include(OTHERS)
    assert not parse_recipients([RECIPIENT], "readers").include(OTHERS)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"{EXAMPLE[:-1]}q", "is not a recipient of age: copy the whole"),
        ("ssh-ed25519 AAAA", "ssh-ed25519 AAAA is not a recipient"),
        ("clinic@example.com", "is not a recipient"),
        ("", "has no recipient"),
        ("# a comment", "has no recipient"),
    ],
)
def test_unusable_recipient_is_refused(line: str, problem: str) -> None:
    with pytest.raises(RecipientInvalid, match=f"^spec.somewhere: .*{problem}"):
        parse_recipients([line], "spec.somewhere")


def test_secret_in_place_of_a_recipient_is_refused_and_not_quoted() -> None:
    with pytest.raises(RecipientInvalid, match="make a new identity") as error:
        parse_recipients([str(SECRET)], "here")
    assert str(SECRET) not in str(error.value)


def test_identities_do_not_show_in_a_traceback() -> None:
    assert str(SECRET) not in repr(OURS) and "AGE-SECRET" not in repr(OURS)


def test_file_of_identities_may_hold_several(tmp_path: Path) -> None:
    first, second = new_identity()[0], new_identity()[0]
    (tmp_path / "all.txt").write_bytes(first + b"\n" + second)
    assert len(read_identities(tmp_path / "all.txt").keys) == 2


@pytest.mark.parametrize(
    "content", [b"", b"# public key: age1x\n", EXAMPLE.encode(), b"\xff\xfe", b"AGE-SECRET-KEY-1X"]
)
def test_file_without_an_identity_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(KeyUnusable, match="has no identity of age") as error:
        read_identities(tmp_path / "file")
    assert "SECRET" not in str(error.value)
    with pytest.raises(KeyUnusable, match="cannot be read"):
        read_identities(tmp_path / "absent")


def test_ssh_key_decrypts(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (tmp_path / "id").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    stored = parse_recipients([f"{public} someone@clinic"], "here").encrypt(FILES)
    assert decrypt_files(stored, read_identities(tmp_path / "id"), "uri") == FILES


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs the Debian package openssh-client")
def test_ssh_key_with_a_passphrase_decrypts_nothing(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", tmp_path / "id"], check=True)
    stored = parse_recipients([(tmp_path / "id.pub").read_text()], "here").encrypt(FILES)
    with pytest.raises((KeyUnusable, DecryptionFailed)):
        decrypt_files(stored, read_identities(tmp_path / "id"), "uri")


def test_identity_of_keygen_is_that_of_its_recipient(tmp_path: Path) -> None:
    content, recipient = new_identity()
    write_new(tmp_path / "keys", {"age-identity.txt": (content, 0o600)})
    assert parse_recipients([recipient], "here").include(read_identities(tmp_path / "keys" / "age-identity.txt"))


@pytest.mark.skipif(shutil.which("age") is None, reason="needs the Debian package age")
def test_command_of_age_decrypts(tmp_path: Path) -> None:
    (tmp_path / "identity").write_text(f"{SECRET}\n")
    stored = parse_recipients([RECIPIENT], "here").encrypt(FILES)["adapter_model.safetensors.age"]
    command = ["age", "-d", "-i", tmp_path / "identity"]
    assert subprocess.run(command, input=stored, capture_output=True, check=True).stdout == b"weights"
