"""Lets securesystemslib sign with a key that only signs on request, such as one in a PKCS #11 token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from securesystemslib.signer import Signature, Signer, SSlibKey


class TokenSigner(Signer):
    """A signer for DSSE envelopes.

    Args:
        public: the public key.
        sign: returns the signature (ECDSA with the hash that fits the curve, as DER) of some bytes.
    """

    def __init__(self, public: EllipticCurvePublicKey, sign: Callable[[bytes], bytes]) -> None:
        self._key, self._sign = SSlibKey.from_crypto(public), sign

    @classmethod
    def from_priv_key_uri(cls, *_: Any, **__: Any) -> NoReturn:
        """Not used: `tensorguard.signing.pkcs11` opens the token."""
        raise NotImplementedError

    @property
    def public_key(self) -> SSlibKey:
        return self._key

    def sign(self, payload: bytes) -> Signature:
        return Signature(self._key.keyid, self._sign(payload).hex())
