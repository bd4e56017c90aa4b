"""What every signing key has: whom its signatures make trusted, and how it signs; and how public keys are written.

The fingerprint of a key is `sha256:` and the SHA-256 of the public key as DER (SubjectPublicKeyInfo), in hex. OpenSSL
computes the same: `openssl pkey -pubin -in KEY.pub.pem -outform DER | sha256sum`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from tensafe_api.reasons import Reason
from tensorguard.signing.trust import TrustedIdentity, TrustedKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate
    from model_signing.signing import Config
    from securesystemslib.signer import Signer

PKCS11_SCHEME = "pkcs11:"
SIGSTORE_SCHEME = "sigstore:"
CURVES = ("secp256r1", "secp384r1", "secp521r1")


class KeyUnusable(Exception):
    """A key cannot be made or read. `str()` is a sentence with the fix; it quotes nothing of a key."""

    reason: ClassVar[Reason] = Reason.INVALID_MANIFEST


class KeyUnavailable(KeyUnusable):
    """A token with a key is absent, or does not work at the moment."""

    reason: ClassVar[Reason] = Reason.CHECKPOINT_UNWRITABLE


class OpenKey(Protocol):
    """A key that can sign now, in the forms that two libraries ask for."""

    @property
    def public(self) -> EllipticCurvePublicKey:
        """The public key."""

    @property
    def certificates_der(self) -> tuple[bytes, ...]:
        """The certificates that a signature holds: that of the key first; empty for a bare key."""

    @property
    def statement_signer(self) -> Signer:
        """Signs in-toto statements, for securesystemslib."""

    def use_in(self, config: Config) -> None:
        """Make model-signing sign with the key."""


class SigningKey(ABC):
    """What signs checkpoints."""

    @property
    @abstractmethod
    def trust(self) -> TrustedKey | TrustedIdentity:
        """Whom to trust so that exactly its signatures are accepted."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[OpenKey]:
        """A key while it signs one checkpoint. Raises KeyUnusable, also in the block."""


@dataclass(frozen=True)
class FixedKey(SigningKey):
    """One key that signs all checkpoints.

    Attributes:
        certificates: the chain that comes with the key: that of the key first; empty for a bare key.
    """

    certificates: tuple[Certificate, ...]

    @property
    @abstractmethod
    def public(self) -> EllipticCurvePublicKey:
        """The public key."""

    @property
    def trust(self) -> TrustedKey:
        return TrustedKey(self.public)

    @property
    def public_pem(self) -> str:
        return pem_of(self.public)

    @property
    def certificates_der(self) -> tuple[bytes, ...]:
        """The certificates that a signature holds."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return tuple(each.public_bytes(Encoding.DER) for each in self.certificates)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.public)


def fingerprint_of(key: EllipticCurvePublicKey) -> str:
    """`sha256:` and the hash of the public key as DER."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def pem_of(key: EllipticCurvePublicKey) -> str:
    """The public key as PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
