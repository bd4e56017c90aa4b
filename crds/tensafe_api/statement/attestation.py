"""The privacy claim of a checkpoint as an in-toto statement, which a signature covers.

In: the digests of the checkpoint's files, its privacy statement, and who signs. Out: an in-toto statement (version 1)
with the predicate type `PREDICATE_TYPE`. `tensorguard.signing` signs it, and checks it by building it again: everything
in it follows from the statement and the files. docs/reference/privacy-attestation.md describes it, and the JSON schema
beside that page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensafe_api.resources.model import commit_of
from tensafe_api.statement.contents import STATEMENT_FILE, digest

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://tensafe.io/attestations/privacy/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def build_attestation(
    name: str,
    digests: Mapping[str, str],
    statement: bytes,
    document: Mapping[str, Any],
    *,
    public_key: str,
    fingerprint: str,
    certificates: Sequence[str] = (),
) -> dict[str, Any]:
    """The in-toto statement of one checkpoint.

    Args:
        name: of the checkpoint, such as `final`. An older checkpoint under this name does not match.
        digests: of every file of the checkpoint, `sha256:` and 64 hex digits, by the file's name.
        statement: the privacy statement as it is stored.
        document: the same statement, parsed.
        public_key: the signer's, as PEM.
        fingerprint: of that key.
        certificates: digests of the signer's certificates (DER), that of the key first; empty for a bare key.

    Raises:
        KeyError, TypeError: the statement lacks a part.
    """
    hashes, model = document["hashes"], document["model"]
    commit = commit_of(model.get("weights")) if isinstance(model, Mapping) else None
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": file, "digest": _in_toto(value)} for file, value in sorted(digests.items())],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "checkpoint": name,
            "job": document["job"],
            "claim": document["claim"],
            "spent": document["spent"],
            "mechanism": document["mechanism"],
            "events": document["events"],
            "accounting": document["accounting"],
            "ledger": {"head": hashes["ledgerHead"], "length": hashes["ledgerLength"]},
            "image": hashes["image"],
            "code": hashes["code"],
            "model": {**model, **({"commit": commit} if commit else {})} if isinstance(model, Mapping) else model,
            "statement": {"name": STATEMENT_FILE, "digest": _in_toto(digest(statement))},
            "signer": {
                "publicKey": public_key,
                "fingerprint": fingerprint,
                "certificates": [_in_toto(each) for each in certificates],
            },
        },
    }


def _in_toto(value: str) -> dict[str, str]:
    """A digest as in-toto writes it."""
    algorithm, _, digits = value.partition(":")
    return {algorithm: digits}
