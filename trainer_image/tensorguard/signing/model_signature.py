"""A signature over all files of a checkpoint, in the format of OpenSSF model-signing.

The library signs and verifies. It usually hashes a folder; here it gets the digests, which the checkpoint's store has
computed, so nothing is written to a disk and nothing is hashed twice. Its own command verifies the result:

    model_signing verify key --signature DIR/model.sig --public_key signing-key.pub.pem DIR

The file is a Sigstore bundle, in which some bytes are covered by no signature, such as spaces, unknown fields and the
unused bits of base64. So `parse_bundle` accepts one form only, and a changed byte anywhere in the file is noticed.

Importing this module takes half a second.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from model_signing import hashing, signing, verifying
from model_signing._hashing.hashing import Digest
from model_signing.manifest import Manifest, SerializationType
from sigstore.errors import Error as SigstoreError
from sigstore.models import Bundle

from tensafe_api.statement.attestation import PAYLOAD_TYPE
from tensafe_api.statement.contents import canonical_json
from tensorguard.signing.base import OpenKey, pem_of
from tensorguard.signing.trust import TrustedIdentity

_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_SERIALIZATION = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}


class _Digests(hashing.Config):
    """Gives the library digests that are known already, in place of those of a folder."""

    def __init__(self, name: str, digests: Mapping[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = (name, digests)

    def hash(self, model_path: Any, *, files_to_hash: Iterable[Any] | None = None) -> Manifest:
        name, digests = self._known
        form = SerializationType.from_args(_SERIALIZATION)
        items = [
            form.new_item(file, Digest("sha256", bytes.fromhex(value.removeprefix("sha256:"))))
            for file, value in sorted(digests.items())
        ]
        return Manifest(name, items, form)


def sign_digests(key: OpenKey, name: str, digests: Mapping[str, str]) -> bytes:
    """The signature file over `digests`.

    Args:
        name: of the checkpoint; it is signed too, but the library does not compare it.
        digests: `sha256:` and 64 hex digits, by file name.
    """
    config = signing.Config().set_hashing_config(_Digests(name, digests))
    key.use_in(config)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "signature"
        config.sign(name, written)
        bundle = json.loads(written.read_bytes())
    if key.certificates_der and "publicKey" in bundle["verificationMaterial"]:
        # The signature is that of the bare key. The certificates stand beside it, and it does not cover them.
        encoded = [base64.b64encode(each).decode() for each in key.certificates_der]
        bundle["verificationMaterial"] = {**_chain(encoded), "tlogEntries": []}
    return canonical_json(bundle)


def parse_bundle(content: bytes) -> dict[str, Any]:
    """The bundle in a signature file. Raises ValueError unless each byte is as `sign_digests` writes it."""
    try:
        bundle = json.loads(content)
        if "certificate" in bundle["verificationMaterial"]:
            return _parse_sigstore_bundle(content)
        envelope, material = bundle["dsseEnvelope"], bundle["verificationMaterial"]
        (signature,) = envelope["signatures"]
        if "publicKey" in material:
            signer: dict[str, Any] = {"publicKey": {"hint": str(material["publicKey"]["hint"])}}
        else:
            signer = _chain(_same_bytes(each["rawBytes"]) for each in material["x509CertificateChain"]["certificates"])
        expected = {
            "mediaType": _MEDIA_TYPE,
            "verificationMaterial": {**signer, "tlogEntries": []},
            "dsseEnvelope": {
                "payload": _same_bytes(envelope["payload"]),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": _same_bytes(signature["sig"]), "keyid": ""}],
            },
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it is no signature") from error
    if canonical_json(expected) != content:
        raise ValueError("it has bytes that no signer wrote")
    return expected


def certificates_in(content: bytes) -> tuple[bytes, ...]:
    """The certificates (DER) in a signature file, that of the key first; empty for a bare key. Raises ValueError."""
    material = parse_bundle(content)["verificationMaterial"]
    found = [material["certificate"]] if "certificate" in material else material.get("x509CertificateChain", {})
    chain = found if isinstance(found, list) else found.get("certificates", ())
    return tuple(base64.b64decode(each["rawBytes"]) for each in chain)


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER), such as `CN=release,O=clinic`."""
    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()


def verify_with_key(content: bytes, key: EllipticCurvePublicKey, digests: Mapping[str, str]) -> None:
    """Check that `key` signed exactly these digests. Raises an error of any class if not.

    A signature with certificates is checked as well: the certificates are no part of what is signed.
    """
    bundle, pem = parse_bundle(content), pem_of(key)
    if "publicKey" not in bundle["verificationMaterial"]:
        hint = {"hint": hashlib.sha256(pem.encode()).hexdigest()}
        bundle["verificationMaterial"] = {"publicKey": hint, "tlogEntries": []}
        bundle["dsseEnvelope"]["signatures"][0]["keyid"] = ""
    with tempfile.TemporaryDirectory() as folder:
        key_file = Path(folder) / "key.pem"
        key_file.write_text(pem)
        _verify(verifying.Config().use_elliptic_key_verifier(public_key=key_file), bundle, digests, Path(folder))


def signed_digests(content: bytes, key: EllipticCurvePublicKey) -> dict[str, str] | None:
    """What `key` signed, for messages; None where `key` signed none of it."""
    try:
        payload = json.loads(base64.b64decode(parse_bundle(content)["dsseEnvelope"]["payload"]))
        found = {each["name"]: f"sha256:{each['digest']}" for each in payload["predicate"]["resources"]}
        verify_with_key(content, key, found)
    except Exception:  # the library raises errors of many classes
        return None
    return found


def verify_with_chain(content: bytes, chain: Path, digests: Mapping[str, str]) -> EllipticCurvePublicKey:
    """Check that a certificate which `chain` (trusted certificates, PEM) vouches for signed exactly these digests.

    The certificate must be for signing, and is checked as of the start of its validity: an expired one is accepted.

    Returns:
        The key of the certificate.

    Raises:
        Exception: of any class, if not.
    """
    bundle = parse_bundle(content)
    certificates = certificates_in(content)
    if not certificates:
        raise ValueError("it was made with a bare key, which no certificate vouches for")
    with tempfile.TemporaryDirectory() as folder:
        _verify(verifying.Config().use_certificate_verifier(certificate_chain=[chain]), bundle, digests, Path(folder))
    key = x509.load_der_x509_certificate(certificates[0]).public_key()
    assert isinstance(key, EllipticCurvePublicKey)
    return key


def verify_with_identity(content: bytes, trust: TrustedIdentity, digests: Mapping[str, str]) -> EllipticCurvePublicKey:
    """Check that an identity signed exactly these digests, while a certificate of its Sigstore instance was valid.

    The certificate, its entry in a certificate log, the entry of the signature in the instance's log, and the time
    stamp are checked with the keys in the trust configuration. No service is asked.

    Returns:
        The key of the certificate.

    Raises:
        Exception: of any class, if not.
    """
    bundle = parse_bundle(content)
    if "certificate" not in bundle["verificationMaterial"]:
        raise ValueError("it was made with a key, not by an identity")
    config = verifying.Config().use_sigstore_verifier(
        identity=trust.name, oidc_issuer=trust.issuer, trust_config=trust.instance
    )
    with tempfile.TemporaryDirectory() as folder:
        _verify(config, bundle, digests, Path(folder))
    key = x509.load_der_x509_certificate(certificates_in(content)[0]).public_key()
    assert isinstance(key, EllipticCurvePublicKey)
    return key


def _parse_sigstore_bundle(content: bytes) -> dict[str, Any]:
    """As `parse_bundle`, for a signature by an identity: one entry in a log of Rekor version 2, and a time stamp."""
    try:
        expected: dict[str, Any] = json.loads(Bundle.from_json(content).to_json())
        (entry,) = expected["verificationMaterial"]["tlogEntries"]
        (stamp,) = expected["verificationMaterial"]["timestampVerificationData"]["rfc3161Timestamps"]
        known = entry["kindVersion"] == {"kind": "hashedrekord", "version": "0.0.2"} and len(stamp) == 1
        plain = entry["integratedTime"] == "0" and entry["logIndex"] == entry["inclusionProof"]["logIndex"]
    except (SigstoreError, ValueError, KeyError, TypeError) as error:
        raise ValueError("it is no signature") from error
    if not known or not plain or "inclusionPromise" in entry or canonical_json(expected) != content:
        raise ValueError("it has bytes that no signer wrote")
    return expected


def _verify(config: verifying.Config, bundle: Mapping[str, Any], digests: Mapping[str, str], folder: Path) -> None:
    signature = folder / "signature"
    signature.write_bytes(canonical_json(bundle))
    with contextlib.redirect_stdout(io.StringIO()):  # the library prints warnings
        config.set_hashing_config(_Digests("", digests)).verify(folder, signature)


def _chain(certificates: Iterable[str]) -> dict[str, Any]:
    return {"x509CertificateChain": {"certificates": [{"rawBytes": each} for each in certificates]}}


def _same_bytes(text: str) -> str:
    """The one base64 text of the bytes in `text`."""
    return base64.b64encode(base64.b64decode(text, validate=True)).decode()
