"""Whether a PrivacyLedger still has the spec with which it was created, and its charges.

No client can change a spec. But under CRDs of an earlier release the API server drops the fields that those do not
know, and any write of the ledger, also of its status, deletes them for good. ε computed from the rest may be too small.
The API server drops no annotation. So each ledger has one with the digest of its spec.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tensafe_api import fixes
from tensafe_api.resources.ledger import PrivacyLedgerSpec
from tensafe_api.statement import digest

SPEC_DIGEST_ANNOTATION = "tensafe.io/spec-digest"
_RECORD = ("attempt", "charges", "chargedThrough", "length")
"""What each status of a ledger has."""
LOST_FIELDS = (
    "lacks fields of its spec or its charges, so no ε can be computed from it. An administrator applies crds/ of the "
    f"operator's release. If the fields stay away, they are lost: {fixes.LEDGER_SHORTENED}"
)
"""What to say of a ledger that has lost fields, after its name."""


def spec_digest(spec: PrivacyLedgerSpec) -> str:
    """`sha256:` and the digest of a spec in hex. A field that has its default counts as one that is not there: a later
    release may add fields, for which the API server fills in their defaults.
    """
    fields = spec.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    return digest(json.dumps(fields, sort_keys=True).encode())


def has_lost_fields(ledger: Mapping[str, Any]) -> bool:
    """Whether a PrivacyLedger has another spec than at its creation, or a status without charges. The spec is not
    compared where this release cannot read it, or where another client has created the ledger: it has no digest then.
    """
    if has_lost_charges(ledger):
        return True
    recorded = (ledger["metadata"].get("annotations") or {}).get(SPEC_DIGEST_ANNOTATION)
    if recorded is None:
        return False
    try:
        spec = PrivacyLedgerSpec.model_validate(ledger.get("spec"), by_name=False)
    except ValidationError:
        return False
    return bool(spec_digest(spec) != recorded)


def has_lost_charges(ledger: Mapping[str, Any]) -> bool:
    """Whether a PrivacyLedger has a status that lacks what each status has. The rules of the CRD allow none, but a CRD
    that does not know a field drops it.
    """
    status = ledger.get("status") or {}
    return bool(status) and not all(name in status for name in _RECORD)
