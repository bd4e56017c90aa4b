"""What is written beside the files of a signed checkpoint, and how it is checked.

Two files. `privacy-attestation.json` is the privacy claim about the files, signed. `model.sig` is the signature over
all files, that one and the manifest included. The manifest does not list them, so the digest of a checkpoint, which
the ledger records, does not depend on who signs it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tensafe_api.reasons import Reason
from tensafe_api.statement.attestation import PREDICATE_TYPE, STATEMENT_TYPE, build_attestation
from tensafe_api.statement.contents import STATEMENT_FILE, digest
from tensorguard.backoff import RETRY_SECONDS, retry_delays
from tensorguard.signing.base import FixedKey, KeyUnavailable, KeyUnusable, SigningKey, fingerprint_of, pem_of
from tensorguard.signing.keys import parse_public_key
from tensorguard.signing.trust import Trust, TrustedCertificates, TrustedIdentity, TrustedKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

SIGNATURE = "model.sig"
ATTESTATION = "privacy-attestation.json"
SIGNATURE_FILES = (ATTESTATION, SIGNATURE)


class SignatureInvalid(Exception):
    """A checkpoint is not signed as it must be. `str()` is a sentence; `file` is the file that shows it."""

    reason: ClassVar[Reason] = Reason.SIGNATURE_INVALID

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file, self.problem = file, problem


@dataclass(frozen=True)
class Signature:
    """A signature that was checked.

    Attributes:
        name: of the checkpoint that was signed.
        fingerprint: of the signer's key.
        subject: of the signer's certificate, if a trusted one vouches for it; None: nothing shows whose key it is.
    """

    name: str
    fingerprint: str
    subject: str | None = None


def sign_checkpoint(key: SigningKey, name: str, digests: Mapping[str, str], statement: bytes) -> dict[str, bytes]:
    """The two files to write beside those of a checkpoint. Waits for the token of a key that is unavailable.

    Args:
        name: of the checkpoint.
        digests: of all its files as they are stored, the manifest included.
        statement: the privacy statement among them.

    Raises:
        KeyUnusable: the key is in a token, which does not sign.
    """
    give_up = time.monotonic() + RETRY_SECONDS
    for wait in retry_delays():
        try:
            return _sign(key, name, digests, statement)
        except KeyUnavailable:
            if time.monotonic() >= give_up:
                raise
            time.sleep(wait)
    raise AssertionError("waits never end")


def _sign(key: SigningKey, name: str, digests: Mapping[str, str], statement: bytes) -> dict[str, bytes]:
    from tensorguard.signing.envelope import sign_statement
    from tensorguard.signing.model_signature import sign_digests

    with key.opened() as signer:
        claim = build_attestation(
            name,
            digests,
            statement,
            json.loads(statement),
            public_key=pem_of(signer.public),
            fingerprint=fingerprint_of(signer.public),
            certificates=[digest(each) for each in signer.certificates_der],
        )
        attestation = sign_statement(signer, claim)
        signature = sign_digests(signer, name, {**digests, ATTESTATION: digest(attestation)})
    files = {ATTESTATION: attestation, SIGNATURE: signature}
    if not isinstance(key, FixedKey):
        try:  # an instance may sign without what a check needs, such as a time stamp
            check_signature(digests, statement, files, key.trust)
        except SignatureInvalid as error:
            raise KeyUnavailable(f"the new signature cannot be verified: {error}") from error
    return files


def signer_in(files: Mapping[str, bytes]) -> str:
    """The fingerprint of the key that made the two files of `sign_checkpoint`."""
    from tensorguard.signing.envelope import statement_in

    return str(statement_in(files[ATTESTATION])["predicate"]["signer"]["fingerprint"])


def check_signature(
    digests: Mapping[str, str], statement: bytes, signatures: Mapping[str, bytes], trust: Trust
) -> Signature:
    """Check the two files of a signed checkpoint.

    Args:
        digests: of all files of the checkpoint, the manifest included and the two files left out. The caller has
            compared the files with them.
        statement: the privacy statement among the files.
        signatures: the two files, by name.
        trust: whom to trust.

    Raises:
        SignatureInvalid: they are missing, were changed, are about other files, or are by another signer.
    """
    from tensorguard.signing.envelope import statement_in, verify_statement
    from tensorguard.signing.model_signature import certificates_in, subject_of, verify_with_key

    for file in SIGNATURE_FILES:
        if file not in signatures:
            raise SignatureInvalid(file, "is missing, so the checkpoint is not signed")
    attestation, signature = signatures[ATTESTATION], signatures[SIGNATURE]
    try:
        certificates = certificates_in(signature)
    except ValueError as error:
        raise SignatureInvalid(SIGNATURE, f"was changed: {error}") from error
    try:
        attested = statement_in(attestation)
        key = parse_public_key(attested["predicate"]["signer"]["publicKey"].encode(), ATTESTATION)
        name = str(attested["predicate"]["checkpoint"])
    except (ValueError, KeyError, TypeError, AttributeError, KeyUnusable) as error:
        raise SignatureInvalid(ATTESTATION, "was changed: it is no signed privacy claim") from error
    if isinstance(trust, TrustedKey) and fingerprint_of(key) != fingerprint_of(trust.key):
        raise SignatureInvalid(
            SIGNATURE, f"was signed by another key ({fingerprint_of(key)}) than the trusted {fingerprint_of(trust.key)}"
        )
    signed = {**digests, ATTESTATION: digest(attestation)}
    try:
        verify_with_key(signature, key, signed)
    except Exception as error:  # the library raises errors of many classes
        raise SignatureInvalid(*_which(signature, key, signed)) from error
    if isinstance(trust, TrustedCertificates | TrustedIdentity):
        vouched = _vouched_key(signature, trust, signed)
        if fingerprint_of(vouched) != fingerprint_of(key):
            raise SignatureInvalid(ATTESTATION, "was signed by another key than the certificate's")
    try:
        verify_statement(attestation, key)
    except Exception as error:
        raise SignatureInvalid(ATTESTATION, "has a wrong signature") from error
    _check_attested(attested, name, digests, statement, key, [digest(each) for each in certificates])
    subject = subject_of(certificates[0]) if isinstance(trust, TrustedCertificates) else None
    return Signature(name, fingerprint_of(key), subject)


def _vouched_key(
    signature: bytes, trust: TrustedCertificates | TrustedIdentity, signed: Mapping[str, str]
) -> EllipticCurvePublicKey:
    """The key of the signer's certificate, for which the trusted ones vouch. Raises SignatureInvalid."""
    from tensorguard.signing.model_signature import verify_with_chain, verify_with_identity

    try:
        if isinstance(trust, TrustedCertificates):
            return verify_with_chain(signature, trust.path, signed)
        return verify_with_identity(signature, trust, signed)
    except Exception as error:  # the libraries raise errors of many classes
        if isinstance(trust, TrustedCertificates):
            problem = f"no certificate of {trust.path} vouches for its signer"
        else:
            problem = f"{trust.instance} does not show that {trust.name} signed it"
        raise SignatureInvalid(SIGNATURE, f"{problem} ({str(error) or type(error).__name__})") from error


def _which(signature: bytes, key: EllipticCurvePublicKey, signed: Mapping[str, str]) -> tuple[str, str]:
    """The file for which a signature does not hold, and what is wrong."""
    from tensorguard.signing.model_signature import signed_digests

    found = signed_digests(signature, key)
    if found is None:
        return SIGNATURE, "has a wrong signature: it, or what it covers, was changed"
    for file in sorted(signed.keys() | found.keys()):
        if file not in found:
            return file, "is not covered by the signature: it was added"
        if file not in signed:
            return file, "is covered by the signature and missing"
        if signed[file] != found[file]:
            return file, "is not what was signed"
    return SIGNATURE, "has a wrong signature"


def _check_attested(
    attested: Mapping[str, Any],
    name: str,
    digests: Mapping[str, str],
    statement: bytes,
    key: EllipticCurvePublicKey,
    certificates: list[str],
) -> None:
    """Check that the claim is about these files and this statement, by building it again."""
    if (attested.get("_type"), attested.get("predicateType")) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise SignatureInvalid(ATTESTATION, f"is not of the type {PREDICATE_TYPE}")
    try:
        expected = build_attestation(
            name,
            digests,
            statement,
            json.loads(statement),
            public_key=pem_of(key),
            fingerprint=fingerprint_of(key),
            certificates=certificates,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SignatureInvalid(STATEMENT_FILE, "is no privacy statement") from error
    if attested != expected:
        parts = (*expected, *expected["predicate"])
        differing = [
            part
            for part in parts
            if part != "predicate"
            and attested.get(part, attested["predicate"].get(part))
            != expected.get(part, expected["predicate"].get(part))
        ]
        raise SignatureInvalid(ATTESTATION, f"does not match the files beside it ({', '.join(differing) or 'more'})")
