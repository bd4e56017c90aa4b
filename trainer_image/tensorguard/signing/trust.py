"""Whom a check of a signature trusts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(frozen=True)
class TrustedKey:
    """The signer must have this key."""

    key: EllipticCurvePublicKey


@dataclass(frozen=True)
class TrustedCertificates:
    """The signer must have a certificate that one in this PEM file vouches for."""

    path: Path


@dataclass(frozen=True)
class TrustedIdentity:
    """The signer must have a certificate of a Sigstore instance for this identity.

    Attributes:
        name: such as an e-mail address, or the URI of a workflow.
        issuer: URL of the OpenID provider that vouched for the name.
        instance: the instance's trust configuration (JSON).
    """

    name: str
    issuer: str
    instance: Path


Trust = TrustedKey | TrustedCertificates | TrustedIdentity | None
"""Whom a check trusts. None: no key, so that a check shows only that the files are those that some key signed."""
