"""A signed in-toto statement: a DSSE envelope, signed and verified by securesystemslib.

In: a statement and an open key. Out: the envelope as JSON, which tools for in-toto and DSSE read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from tensafe_api.statement.attestation import PAYLOAD_TYPE
from tensafe_api.statement.contents import canonical_json
from tensorguard.signing.base import OpenKey


def sign_statement(key: OpenKey, statement: Mapping[str, Any]) -> bytes:
    """The envelope of `statement`, as the JSON that is stored."""
    envelope = Envelope(canonical_json(statement), PAYLOAD_TYPE, {})
    envelope.sign(key.statement_signer)
    return canonical_json(envelope.to_dict())


def statement_in(content: bytes) -> dict[str, Any]:
    """The statement in an envelope, which nothing has verified yet. Raises ValueError."""
    try:
        envelope = Envelope.from_dict(json.loads(content))
        statement = json.loads(envelope.payload)
    except Exception as error:  # the library has its own error classes
        raise ValueError("it is no DSSE envelope with a statement") from error
    if envelope.payload_type != PAYLOAD_TYPE or not isinstance(statement, dict):
        raise ValueError("it is no in-toto statement")
    return statement


def verify_statement(content: bytes, key: EllipticCurvePublicKey) -> None:
    """Check that `key` signed the statement in an envelope. Raises an error of any class if not."""
    Envelope.from_dict(json.loads(content)).verify([SSlibKey.from_crypto(key)], 1)
