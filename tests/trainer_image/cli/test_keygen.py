"""`tensafe keygen`: files with the right modes, that other tools read, and that are never overwritten."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pyrage
import pytest

from tensorguard.cli.main import main
from tensorguard.signing.base import KeyUnusable, fingerprint_of
from tensorguard.signing.keys import read_public_key, read_signing_key


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_files_are_for_their_owner_only(tmp_path: Path) -> None:
    assert main(["keygen", str(tmp_path / "keys")]) == 0
    assert mode(tmp_path / "keys") == 0o700
    assert {path.name: oct(mode(path)) for path in (tmp_path / "keys").iterdir()} == {
        "signing-key.pem": "0o600",
        "signing-key.pub.pem": "0o644",
        "age-identity.txt": "0o600",
    }


def test_printed_fingerprint_is_that_of_the_key_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", str(tmp_path), "--only", "signing"]) == 0
    private = read_signing_key(tmp_path / "signing-key.pem")
    public = read_public_key(tmp_path / "signing-key.pub.pem")
    assert private.fingerprint == fingerprint_of(public)
    assert private.fingerprint in capsys.readouterr().out
    assert private.private.curve.name == "secp256r1" and not private.certificates
    assert not (tmp_path / "age-identity.txt").exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the Debian package openssl")
def test_fingerprint_is_what_openssl_computes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["keygen", str(tmp_path)])
    printed = capsys.readouterr().out
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", tmp_path / "signing-key.pub.pem", "-outform", "DER"],
        capture_output=True,
        check=True,
    ).stdout
    digest = subprocess.run(["sha256sum"], input=der, capture_output=True, check=True).stdout.split()[0].decode()
    assert f"sha256:{digest}" in printed


def test_printed_recipient_encrypts_for_the_identity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", str(tmp_path), "--only", "age"]) == 0
    recipient = pyrage.x25519.Recipient.from_str(capsys.readouterr().out.split()[-1])
    secret = next(line for line in (tmp_path / "age-identity.txt").read_text().splitlines() if not line.startswith("#"))
    encrypted = pyrage.encrypt(b"weights", [recipient])
    assert pyrage.decrypt(encrypted, [pyrage.x25519.Identity.from_str(secret)]) == b"weights"
    assert [path.name for path in tmp_path.iterdir()] == ["age-identity.txt"]


@pytest.mark.parametrize("existing", ["signing-key.pem", "signing-key.pub.pem", "age-identity.txt"])
def test_existing_key_is_not_overwritten_and_nothing_else_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], existing: str
) -> None:
    (tmp_path / existing).write_text("precious")
    assert main(["keygen", str(tmp_path)]) == 1
    assert (tmp_path / existing).read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    message = capsys.readouterr().err
    assert existing in message and "never overwritten" in message


def test_keys_of_other_runs_differ(tmp_path: Path) -> None:
    for name in "ab":
        main(["keygen", str(tmp_path / name)])
    for file in ("signing-key.pem", "age-identity.txt"):
        assert (tmp_path / "a" / file).read_bytes() != (tmp_path / "b" / file).read_bytes()


def test_private_key_in_place_of_the_public_one_is_refused(tmp_path: Path) -> None:
    main(["keygen", str(tmp_path)])
    with pytest.raises(KeyUnusable, match="keep the private key secret"):
        read_public_key(tmp_path / "signing-key.pem")
    with pytest.raises(KeyUnusable, match="no private key"):
        read_signing_key(tmp_path / "signing-key.pub.pem")
