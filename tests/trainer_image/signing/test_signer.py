"""The two files beside a signed checkpoint: what they say, whom a check trusts, and what other tools make of them."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tensafe_api.statement.attestation import PREDICATE_TYPE
from tensafe_api.statement.contents import digest
from tensorguard.signing import keys
from tensorguard.signing.base import KeyUnusable
from tensorguard.signing.keys import read_public_key, read_signing_key
from tensorguard.signing.signer import (
    ATTESTATION,
    SIGNATURE,
    Signature,
    SignatureInvalid,
    Trust,
    TrustedCertificates,
    TrustedKey,
    check_signature,
    sign_checkpoint,
)
from tests.support.trainer.signed_files import DIGESTS, FILES, STATEMENT

ROOT = Path(__file__).resolve().parents[3]


def signed(key: Path) -> dict[str, bytes]:
    return sign_checkpoint(read_signing_key(key), "final", DIGESTS, STATEMENT)


def check(signatures: dict[str, bytes], trust: Trust = None, **changed: str) -> Signature:
    return check_signature({**DIGESTS, **changed}, STATEMENT, signatures, trust)


def statement_of(signatures: dict[str, bytes]) -> dict[str, Any]:
    envelope = json.loads(signatures[ATTESTATION])
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    found: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return found


def schema_of_claims() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs/reference/privacy-attestation-v1.schema.json").read_text())
    return found


@pytest.fixture
def key(make_key: Any) -> Path:
    return make_key() / keys.SIGNING_KEY


@pytest.mark.slow
def test_claim_fits_its_schema(key: Path) -> None:
    schema = schema_of_claims()
    jsonschema.Draft202012Validator.check_schema(schema)
    found = statement_of(signed(key))
    jsonschema.validate(found, schema)
    for part in schema["properties"]["predicate"]["required"]:
        less = {name: value for name, value in found["predicate"].items() if name != part}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**found, "predicate": less}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "predicate": {**found["predicate"], "more": 1}}, schema)


def test_claim_names_job_ledger_image_model_mechanism_events_and_every_file(key: Path) -> None:
    document, found = json.loads(STATEMENT), statement_of(signed(key))
    predicate = found["predicate"]
    assert {each["name"]: f"sha256:{each['digest']['sha256']}" for each in found["subject"]} == DIGESTS
    assert (found["predicateType"], predicate["checkpoint"]) == (PREDICATE_TYPE, "final")
    for part in ("job", "claim", "spent", "mechanism", "events", "accounting"):
        assert predicate[part] == document[part]
    assert predicate["ledger"]["head"] == document["hashes"]["ledgerHead"]
    assert predicate["image"] == document["hashes"]["image"]
    assert predicate["statement"]["digest"] == {"sha256": digest(STATEMENT).removeprefix("sha256:")}


def test_claim_of_a_signer_with_certificates_fits_its_schema(authority: Any) -> None:
    jsonschema.validate(statement_of(signed(authority.issue("schema"))), schema_of_claims())


def test_commit_of_a_model_from_the_hub_is_named(key: Path) -> None:
    document = {**json.loads(STATEMENT), "model": {"name": "org/model", "weights": "commit:0123abcd"}}
    signatures = sign_checkpoint(read_signing_key(key), "final", DIGESTS, json.dumps(document).encode())
    found = statement_of(signatures)
    assert found["predicate"]["model"]["commit"] == "0123abcd"
    jsonschema.validate(found, schema_of_claims())


def test_key_that_signed_is_trusted_and_no_other(key: Path, make_key: Any) -> None:
    trust = TrustedKey(read_public_key(key.with_name(keys.PUBLIC_KEY)))
    assert check(signed(key), trust) == Signature("final", read_signing_key(key).fingerprint)
    other = TrustedKey(read_public_key(make_key("other") / keys.PUBLIC_KEY))
    with pytest.raises(SignatureInvalid, match="was signed by another key") as error:
        check(signed(key), other)
    assert error.value.file == SIGNATURE


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_curves_of_model_signing_can_sign(tmp_path: Path, curve: ec.EllipticCurve) -> None:
    path = tmp_path / "key.pem"
    private = ec.generate_private_key(curve)
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    check(signed(path), TrustedKey(private.public_key()))


def test_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    private = ec.generate_private_key(ec.SECP256K1())
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KeyUnusable, match="P-256, P-384 or P-521"):
        read_signing_key(path)


@pytest.mark.parametrize(
    ("changed", "file", "problem"),
    [
        ({"adapter_model.safetensors": digest(b"other")}, "adapter_model.safetensors", "is not what was signed"),
        ({"manifest.json": digest(b"other")}, "manifest.json", "is not what was signed"),
        ({"extra": digest(b"")}, "extra", "is not covered by the signature"),
    ],
)
def test_other_files_are_refused_and_named(key: Path, changed: dict[str, str], file: str, problem: str) -> None:
    with pytest.raises(SignatureInvalid, match=problem) as error:
        check(signed(key), **changed)
    assert error.value.file == file


def test_missing_file_is_refused_and_named(key: Path) -> None:
    fewer = {name: value for name, value in DIGESTS.items() if name != "adapter_model.safetensors"}
    with pytest.raises(SignatureInvalid, match="is covered by the signature and missing") as error:
        check_signature(fewer, STATEMENT, signed(key), None)
    assert error.value.file == "adapter_model.safetensors"


def test_claim_about_another_statement_is_refused(key: Path) -> None:
    """Our own key signs both files correctly, and the claim does not follow from the statement."""
    other = {**json.loads(STATEMENT), "claim": {**json.loads(STATEMENT)["claim"], "epsilon": "0.1"}}
    signatures = sign_checkpoint(read_signing_key(key), "final", DIGESTS, json.dumps(other).encode())
    with pytest.raises(SignatureInvalid, match="does not match the files beside it") as error:
        check(signatures)
    assert error.value.file == ATTESTATION


def test_certificate_is_trusted_through_its_authority(authority: Any, other_authority: Any) -> None:
    signatures = signed(authority.issue("signer"))
    found = check(signatures, TrustedCertificates(authority.root_file))
    assert found.fingerprint == statement_of(signatures)["predicate"]["signer"]["fingerprint"]
    assert found.subject == "CN=signer"  # a reader must see which of the authority's certificates it is
    assert len(statement_of(signatures)["predicate"]["signer"]["certificates"]) == 2
    with pytest.raises(SignatureInvalid, match=r"no certificate of .* vouches for its signer"):
        check(signatures, TrustedCertificates(other_authority.root_file))


def test_signer_cannot_certify_others(authority: Any) -> None:
    """A certificate for signing is none for issuing certificates."""
    signer = authority.issue("rogue issuer")
    rogue = copy.copy(authority)
    rogue.name, rogue.issuer_key = "rogue", read_signing_key(signer).private
    rogue.issuer = read_signing_key(signer).certificates[0]
    chain = rogue.issue("friend")
    chain.write_bytes(chain.read_bytes() + authority.issuer.public_bytes(Encoding.PEM))
    with pytest.raises(SignatureInvalid, match=r"no certificate of .* vouches for its signer"):
        check(signed(chain), TrustedCertificates(authority.root_file))


def test_subject_of_a_certificate_is_not_believed_without_its_authority(authority: Any) -> None:
    path = authority.issue("resuming")
    assert check(signed(path), None).subject is None
    assert check(signed(path), TrustedKey(read_signing_key(path).private.public_key())).subject is None


def test_certificate_that_the_root_issued_is_enough(authority: Any) -> None:
    signatures = signed(authority.issue("direct", by_root=True))
    check(signatures, TrustedCertificates(authority.root_file))
    assert len(statement_of(signatures)["predicate"]["signer"]["certificates"]) == 1


def test_key_with_a_certificate_is_trusted_as_a_key_too(authority: Any) -> None:
    path = authority.issue("resuming")
    check(signed(path), TrustedKey(read_signing_key(path).private.public_key()))


def test_bare_key_is_not_trusted_through_an_authority(key: Path, authority: Any) -> None:
    with pytest.raises(SignatureInvalid, match="made with a bare key"):
        check(signed(key), TrustedCertificates(authority.root_file))


def test_exchanged_certificates_are_refused(authority: Any, other_authority: Any) -> None:
    """The certificates in a bundle are not covered by its signature; the claim names them."""
    path = authority.issue("exchanged")
    signatures = signed(path)
    bundle = json.loads(signatures[SIGNATURE])
    chain = bundle["verificationMaterial"]["x509CertificateChain"]["certificates"]
    chain[1] = {"rawBytes": base64.b64encode(other_authority.issuer.public_bytes(Encoding.DER)).decode()}
    changed = {**signatures, SIGNATURE: json.dumps(bundle, sort_keys=True, separators=(",", ":")).encode()}
    with pytest.raises(SignatureInvalid, match="does not match"):
        check(changed, TrustedKey(read_signing_key(path).private.public_key()))


def test_file_with_the_certificate_of_another_key_is_refused(key: Path, authority: Any, tmp_path: Path) -> None:
    certificate = authority.issue("other").read_bytes().partition(b"-----BEGIN CERTIFICATE")
    path = tmp_path / "key.pem"
    path.write_bytes(key.read_bytes() + certificate[1] + certificate[2])
    with pytest.raises(KeyUnusable, match="is that of another key"):
        read_signing_key(path)


@pytest.mark.slow
@pytest.mark.parametrize("with_certificate", [False, True], ids=["key", "certificate"])
def test_command_of_model_signing_verifies_the_folder(
    key: Path, authority: Any, tmp_path: Path, with_certificate: bool
) -> None:
    folder = tmp_path / "any-name"
    folder.mkdir()
    path = authority.issue("for-command") if with_certificate else key
    for name, content in {**FILES, **signed(path)}.items():
        (folder / name).write_bytes(content)
    trust = (
        ["certificate", "--certificate_chain", authority.root_file]
        if with_certificate
        else ["key", "--public_key", key.with_name(keys.PUBLIC_KEY)]
    )
    command = [Path(sys.executable).with_name("model_signing"), "verify", *trust, "--signature", folder / SIGNATURE]
    found = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    assert found.stdout == "Verification succeeded\n", found.stderr
    (folder / "adapter_model.safetensors").write_bytes(b"other")
    assert subprocess.run([*command, folder], capture_output=True, check=False).returncode == 1


@pytest.mark.slow
def test_commands_that_sign_nothing_do_not_import_the_libraries() -> None:
    code = (
        "import sys\nimport tensorguard.training.checkpointing, tensorguard.cli.main, tensorguard.cli.verify\n"
        "sys.exit(bool({'model_signing', 'securesystemslib', 'sigstore', 'pyrage'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
