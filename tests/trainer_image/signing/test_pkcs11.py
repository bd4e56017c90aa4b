"""Keys in PKCS #11 tokens: what a URI may say, what a token signs, and the sentence for each mistake."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from tensafe_api.reasons import Reason
from tensorguard.signing import signer
from tensorguard.signing.base import KeyUnavailable, KeyUnusable
from tensorguard.signing.keys import key_location, read_signing_key
from tensorguard.signing.signer import (
    SIGNATURE,
    SignatureInvalid,
    TrustedCertificates,
    TrustedKey,
    check_signature,
    sign_checkpoint,
)
from tests.support.soft_hsm import SoftHSM, find_module
from tests.support.trainer.signed_files import DIGESTS, FILES, STATEMENT


def signed(location: str | Path) -> dict[str, bytes]:
    return sign_checkpoint(read_signing_key(location), "final", DIGESTS, STATEMENT)


def refusal(location: str | Path) -> str:
    """Why a key cannot be used, in one line."""
    with pytest.raises(KeyUnusable) as error:
        read_signing_key(location)
    assert "\n" not in str(error.value)
    assert SoftHSM.PIN not in str(error.value)
    return str(error.value)


class TestURI:
    """What needs no token."""

    @pytest.mark.parametrize(
        "uri",
        [
            "pkcs11:token=release;object=adapters?module-path=/m.so&pin-value=1234-geheim",
            "pkcs11:token=release;object=adapters;pin-value=1234-geheim?module-path=/m.so",
        ],
    )
    def test_pin_in_a_uri_is_refused_and_not_quoted(self, uri: str, tmp_path: Path) -> None:
        (tmp_path / "key").write_text(uri)
        for read in (key_location, read_signing_key, lambda _: read_signing_key(tmp_path / "key")):
            with pytest.raises(KeyUnusable, match="contains a PIN") as error:
                read(uri)
            assert "geheim" not in str(error.value)

    @pytest.mark.parametrize(
        ("uri", "problem"),
        [
            ("pkcs11:object=adapters?module-path=/m.so", "a token and a key must be named"),
            ("pkcs11:token=release?module-path=/m.so", "a token and a key must be named"),
            ("pkcs11:token=release;object=adapters", "the library of the token must be named"),
            ("pkcs11:token=release;object=adapters;type=public?module-path=/m.so", "only a private key signs"),
            ("pkcs11:token=release;object=adapters;library-version=3?module-path=/m.so", "library-version is unknown"),
            ("pkcs11:token=release;token=other;object=adapters?module-path=/m.so", "token is unknown, repeated"),
            ("pkcs11:token;object=adapters?module-path=/m.so", "token is unknown, repeated or has no value"),
            ("pkcs11:token=release;object=%ff?module-path=/m.so", "object is not UTF-8"),
            ("pkcs11:token=release;object=schl%C3%BCssel?module-path=/m.so", "name it by its id"),
        ],
    )
    def test_uri_that_names_too_little_or_what_would_be_ignored_is_refused(self, uri: str, problem: str) -> None:
        assert problem in refusal(uri)

    @pytest.mark.parametrize(
        ("query", "problem"),
        [
            ("module-path=/absent.so", "/absent.so is not the absolute path of a file"),
            ("module-path=relative.so", "relative.so is not the absolute path of a file"),
            ("module-name=absent", "no module absent.so in /usr/lib64/pkcs11, "),
            ("module-path=MODULE&pin-source=pin", "write file:/absolute/path"),
            (
                "module-path=MODULE&pin-source=file:/absent/pin",
                "/absent/pin cannot be read (No such file or directory)",
            ),
            ("module-path=MODULE&pin-source=/dev/null", "/dev/null has no PIN"),
        ],
    )
    def test_module_and_file_of_the_pin_must_exist(
        self, query: str, problem: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "PyKCS11", type(sys)("PyKCS11"))
        assert problem in refusal(f"pkcs11:token=a;object=b?{query.replace('MODULE', __file__)}")

    def test_missing_package_is_named_with_the_fix(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "PyKCS11", None)
        assert "pip install 'tensafe[pkcs11]'" in refusal(f"pkcs11:token=a;object=b?module-path={__file__}")


@pytest.mark.parametrize("curve", ["secp256r1", "secp384r1", "secp521r1"])
def test_token_signs_claim_and_files(soft_hsm: SoftHSM, curve: str) -> None:
    soft_hsm.add_key("adapters", curve=curve)
    key = read_signing_key(soft_hsm.uri())
    assert key.public.curve.name == curve
    found = check_signature(DIGESTS, STATEMENT, signed(soft_hsm.uri()), TrustedKey(key.public))
    assert found.fingerprint == key.fingerprint


def test_key_is_found_by_its_id_serial_and_the_name_of_its_module(
    soft_hsm: SoftHSM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorguard.signing import pkcs11

    soft_hsm.add_key("adapters", b"\x00\xff")
    soft_hsm.add_key("adapters", b"\xa2")
    keys = {each: read_signing_key(soft_hsm.uri(each)) for each in ("id=%00%FF", "id=%a2", "object=adapters;id=%a2")}
    assert keys["id=%a2"].public == keys["object=adapters;id=%a2"].public != keys["id=%00%FF"].public
    monkeypatch.setattr(pkcs11, "_MODULE_FOLDERS", (f"{tmp_path}/*",))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "libsofthsm2.so").symlink_to(str(find_module()))
    query = f"module-name=libsofthsm2&pin-source=file://{soft_hsm.pin_file}"
    signatures = signed(soft_hsm.uri("id=%a2", query=query))
    check_signature(DIGESTS, STATEMENT, signatures, TrustedKey(keys["id=%a2"].public))
    other = soft_hsm.uri("id=%a2;serial=0123;manufacturer=SoftHSM%20project;model=SoftHSM%20v2;type=private")
    assert "there is no such token" in refusal(other)


def test_command_of_model_signing_verifies_what_a_token_signed(soft_hsm: SoftHSM, tmp_path: Path) -> None:
    soft_hsm.add_key()
    folder, public = tmp_path / "adapter", tmp_path / "signer.pub.pem"
    folder.mkdir()
    for name, content in {**FILES, **signed(soft_hsm.uri())}.items():
        (folder / name).write_bytes(content)
    public.write_text(read_signing_key(soft_hsm.uri()).public_pem)
    command = [Path(sys.executable).with_name("model_signing"), "verify", "key", "--public_key", public]
    command += ["--signature", folder / SIGNATURE, folder]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout == "Verification succeeded\n", found.stderr


def test_file_may_hold_a_uri_and_certificates(soft_hsm: SoftHSM, tmp_path: Path, authority: Any) -> None:
    """So a Secret of a job in a cluster may name a key in a token."""
    soft_hsm.add_key()
    key, path = read_signing_key(soft_hsm.uri()), tmp_path / "signing-key.pem"
    path.write_text(f"{soft_hsm.uri()}\n")
    check_signature(DIGESTS, STATEMENT, signed(path), TrustedKey(key.public))

    certified = authority.certify("token", key.public)
    path.write_bytes(f"{soft_hsm.uri()}\n".encode() + certified)
    check_signature(DIGESTS, STATEMENT, signed(path), TrustedCertificates(authority.root_file))
    path.write_bytes(f"{soft_hsm.uri()}\n".encode() + authority.issuer.public_bytes(Encoding.PEM))
    assert "the first certificate is that of another key" in refusal(path)


def test_what_is_wrong_with_a_token_is_one_sentence(soft_hsm: SoftHSM, tmp_path: Path) -> None:
    module = find_module()
    soft_hsm.add_key()
    for _ in range(2):
        soft_hsm.add_key("twice", b"\xb1")
    soft_hsm.add_key("bitcoin", b"\xb2", curve="secp256k1")
    soft_hsm.add_rsa_key("rsa", b"\xb3")
    soft_hsm.add_key("lonely", b"\xb4")
    soft_hsm.rename_public_key("lonely", "other")
    wrong = tmp_path / "wrong-pin"
    wrong.write_text("zq9-another-pin")
    for uri, problem in (
        (soft_hsm.uri(token="absent"), "there is no such token: connect it"),
        (soft_hsm.uri("object=absent"), "the token has no private key of this name"),
        (soft_hsm.uri("object=lonely"), "the token has no public key of this name"),
        (soft_hsm.uri("object=twice"), "the token has 2 private keys of this name: add the id"),
        (soft_hsm.uri("object=bitcoin"), "only elliptic-curve keys on P-256, P-384 or P-521 can sign"),
        (soft_hsm.uri("object=rsa"), "only elliptic-curve keys on P-256, P-384 or P-521 can sign"),
        (soft_hsm.uri(query=f"module-path={module}&pin-source=file:{wrong}"), "the token refuses the PIN"),
        (soft_hsm.uri(query=f"module-path={module}"), "the token asks for a PIN: add pin-source"),
        (soft_hsm.uri(query=f"module-path={__file__}"), f"{__file__} cannot be loaded as a PKCS #11 module"),
    ):
        assert problem in refusal(uri)
    soft_hsm.add_token()
    assert "2 tokens have these attributes: add the serial" in refusal(soft_hsm.uri())


def test_keys_of_one_name_that_are_no_pair_are_refused(soft_hsm: SoftHSM) -> None:
    soft_hsm.add_key("private-of-this", b"\xc1")
    soft_hsm.add_key("other", b"\xc2")
    soft_hsm.rename_public_key("private-of-this", "unused")
    soft_hsm.rename_public_key("other", "private-of-this")
    assert "are not a pair" in refusal(soft_hsm.uri("object=private-of-this"))


def test_another_key_under_the_same_name_signs_nothing(soft_hsm: SoftHSM) -> None:
    soft_hsm.add_key()
    key = read_signing_key(soft_hsm.uri())
    soft_hsm.remove_keys()
    soft_hsm.add_key()
    with pytest.raises(KeyUnusable, match="the token has another key now"):
        sign_checkpoint(key, "final", DIGESTS, STATEMENT)


def test_signature_of_another_key_of_the_token_is_refused(soft_hsm: SoftHSM) -> None:
    soft_hsm.add_key()
    soft_hsm.add_key("other", b"\xa2")
    trust = TrustedKey(read_signing_key(soft_hsm.uri("object=other")).public)
    with pytest.raises(SignatureInvalid, match="was signed by another key"):
        check_signature(DIGESTS, STATEMENT, signed(soft_hsm.uri()), trust)


def test_token_that_was_absent_for_a_while_signs_afterwards(soft_hsm: SoftHSM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps were charged since the last checkpoint, and would be charged again if this one was not written."""
    soft_hsm.add_key()
    key = read_signing_key(soft_hsm.uri())
    away, waits = soft_hsm.tokens.with_name("away"), []
    shutil.move(soft_hsm.tokens, away)
    soft_hsm.tokens.mkdir()

    def connected_again(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            soft_hsm.tokens.rmdir()
            shutil.move(away, soft_hsm.tokens)

    monkeypatch.setattr(time, "sleep", connected_again)
    found = sign_checkpoint(key, "final", DIGESTS, STATEMENT)
    check_signature(DIGESTS, STATEMENT, found, TrustedKey(key.public))
    assert waits == [0.2, 0.4]


def test_token_that_stays_absent_ends_the_attempt_with_a_reason_that_another_may_fix(
    soft_hsm: SoftHSM, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft_hsm.add_key()
    key = read_signing_key(soft_hsm.uri())
    shutil.rmtree(soft_hsm.tokens)
    soft_hsm.tokens.mkdir()
    monkeypatch.setattr(signer, "RETRY_SECONDS", 0)
    with pytest.raises(KeyUnavailable, match="there is no such token") as error:
        sign_checkpoint(key, "final", DIGESTS, STATEMENT)
    assert error.value.reason is Reason.CHECKPOINT_UNWRITABLE and not error.value.reason.permanent


def test_pin_is_in_no_file_that_is_written(soft_hsm: SoftHSM) -> None:
    soft_hsm.add_key()
    for content in signed(soft_hsm.uri()).values():
        json.loads(content)
        assert SoftHSM.PIN.encode() not in content
