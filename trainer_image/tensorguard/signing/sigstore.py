"""Keyless signing: a certificate for a few minutes, which a Sigstore instance gives to an identity.

In: a trust configuration of Sigstore (JSON), which names the instance, and an identity token (OpenID Connect). Out: a
signature whose certificate names the identity. Each checkpoint gets a new key and certificate; the key is in memory
only. The instance's log and its time stamp show that the certificate was valid when it signed.

The claim is signed by the key of the same certificate. `model.sig` covers the claim, so its certificate, entry of the
log and time stamp hold for both.

The token is read for each checkpoint, in this order: from the variable SIGSTORE_ID_TOKEN; from the file that
SIGSTORE_ID_TOKEN_FILE names; from the environment, such as that of GitHub Actions. It is never shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf import json_format
from model_signing._signing import sign_sigstore
from model_signing.signing import Config
from requests import RequestException
from securesystemslib.signer import Signer as StatementSigner
from sigstore import dsse, oidc
from sigstore._internal.fulcio.client import ExpiredCertificate, FulcioClientError
from sigstore._internal.rekor import RekorClientError
from sigstore.errors import Error as SigstoreError
from sigstore.models import ClientTrustConfig
from sigstore.sign import Signer, SigningContext

from tensorguard.signing.base import SIGSTORE_SCHEME, KeyUnavailable, KeyUnusable, OpenKey, SigningKey
from tensorguard.signing.token_signer import TokenSigner
from tensorguard.signing.trust import TrustedIdentity

TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "SIGSTORE_ID_TOKEN", "SIGSTORE_ID_TOKEN_FILE"
_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
"""Extension of a certificate: the issuer of the token, which `sigstore.verify.policy.Identity` compares."""
_LOG_VERSION = 2
"""Of Rekor. An entry of version 1 has fields that nothing would verify."""


@dataclass(frozen=True)
class SigstoreKey(SigningKey):
    """An identity that signs, each time with a new key."""

    identity: TrustedIdentity

    @property
    def trust(self) -> TrustedIdentity:
        return self.identity

    @contextmanager
    def opened(self) -> Iterator[OpenKey]:
        with _signer(self.identity.instance) as signer:
            certificate = signer._signing_cert()
            if _identity_in(certificate, self.identity.instance) != self.identity:
                raise KeyUnusable(f"the identity token is not that of {self.identity.name}, which started the run")
            yield _OpenCertificate(signer, certificate)


def read_sigstore_key(instance: Path) -> SigstoreKey:
    """The identity of the token, after an instance has issued a certificate to it.

    Args:
        instance: the trust configuration of the instance.

    Raises:
        KeyUnusable: the file or the token cannot be used, or the instance issues no certificate.
    """
    with _signer(instance) as signer:
        return SigstoreKey(_identity_in(signer._signing_cert(), instance))


def read_instance(path: Path) -> ClientTrustConfig:
    """The trust configuration of a Sigstore instance. Raises KeyUnusable."""
    try:
        found = ClientTrustConfig.from_json(path.read_text())
    except OSError as error:
        raise KeyUnusable(f"{path} cannot be read ({error.strerror}): pass a trust configuration of Sigstore") from None
    except (ValueError, SigstoreError):
        raise KeyUnusable(f"{path} is no trust configuration of Sigstore (ClientTrustConfig as JSON)") from None
    found.force_tlog_version = _LOG_VERSION
    return found


class _OpenCertificate:
    """A key with its certificate, while it signs one checkpoint."""

    def __init__(self, signer: Signer, certificate: x509.Certificate) -> None:
        public = certificate.public_key()
        assert isinstance(public, EllipticCurvePublicKey)
        self._signer, self.public = signer, public
        self.certificates_der = (certificate.public_bytes(Encoding.DER),)

    @property
    def statement_signer(self) -> StatementSigner:
        return TokenSigner(self.public, lambda payload: self._signer._private_key.sign(payload, ECDSA(SHA256())))

    def use_in(self, config: Config) -> None:
        config._signer = _ModelSigner(self._signer)


class _ModelSigner(sign_sigstore.Signer):
    """Signs as model-signing's signer does, but with a certificate that was issued before."""

    def __init__(self, signer: Signer) -> None:
        self._with = signer

    def sign(self, payload: Any) -> Any:
        statement = dsse.Statement(json_format.MessageToJson(payload.statement.pb).encode())
        return sign_sigstore.Signature(self._with.sign_dsse(statement))


@contextmanager
def _signer(instance: Path) -> Iterator[Signer]:
    """A new key with its certificate. What a service answers becomes KeyUnavailable, also in the block."""
    name, config = f"{SIGSTORE_SCHEME}{instance}", read_instance(instance)
    try:
        context = SigningContext.from_trust_config(config)
    except SigstoreError as error:
        raise KeyUnusable(f"{name}: {_sentence(error)}: it needs Fulcio and a log of Rekor version 2") from None
    try:
        token = oidc.IdentityToken(_token(name))
    except oidc.IdentityError:
        raise KeyUnavailable(
            f"{name}: the identity token is expired, or not one for the audience sigstore: get a new one"
        ) from None
    try:
        with context.signer(token) as signer:
            yield signer
    except oidc.ExpiredIdentity:
        raise KeyUnavailable(f"{name}: the identity token has expired: get a new one") from None
    except (
        SigstoreError,
        ExpiredCertificate,
        FulcioClientError,
        RekorClientError,
        RequestException,
    ) as error:
        raise KeyUnavailable(f"{name}: the instance did not sign ({_sentence(error)})") from None


def _token(name: str) -> str:
    if given := os.environ.get(TOKEN_VARIABLE):
        return given.strip()
    if path := os.environ.get(TOKEN_FILE_VARIABLE):
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise KeyUnavailable(f"{name}: {TOKEN_FILE_VARIABLE} names {path}, which cannot be read") from None
    found = oidc.detect_credential()
    if found is None:
        raise KeyUnusable(
            f"{name}: there is no identity token: set {TOKEN_FILE_VARIABLE} to a file with one, or {TOKEN_VARIABLE} "
            "to the token itself"
        )
    return found


def _identity_in(certificate: x509.Certificate, instance: Path) -> TrustedIdentity:
    """The identity that a certificate names, and the issuer of its token."""
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [*names.get_values_for_type(x509.RFC822Name), *names.get_values_for_type(x509.UniformResourceIdentifier)]
    try:
        issuer: Any = extensions.get_extension_for_oid(_ISSUER).value
    except x509.ExtensionNotFound:
        issuer = None
    if len(found) != 1 or issuer is None:
        raise KeyUnusable(
            f"{instance}: a certificate of this instance must name one e-mail address or URI, and an issuer"
        )
    return TrustedIdentity(found[0], issuer.value.decode(), instance)


def _sentence(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
