"""Figures are computed only from a ledger that is whole."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.platform.fixtures.ledger_objects import SPEC
from e2e.platform.fixtures.rule_examples import EARLIER_STEPS
from tensafe_api.resources.ledger import PrivacyLedgerSpec
from tensafe_api.spec_digest import SPEC_DIGEST_ANNOTATION, spec_digest
from tensafe_kubectl.errors import CommandError
from tensafe_kubectl.figures import figures_of
from tensorguard.verification.errors import NotVerified
from tensorguard.verification.ledgers import find_cluster_ledger


def shortened() -> dict[str, Any]:
    """A ledger that was opened with earlier steps, and has none now."""
    whole = {**SPEC, "mechanism": {**SPEC["mechanism"], "earlierSteps": EARLIER_STEPS}}
    recorded = spec_digest(PrivacyLedgerSpec.model_validate(whole, by_name=False))
    metadata = {"name": "triage", "uid": "u", "annotations": {SPEC_DIGEST_ANNOTATION: recorded}}
    return {"metadata": metadata, "spec": SPEC}


def test_plugin_computes_nothing_from_a_ledger_that_has_lost_fields() -> None:
    with pytest.raises(CommandError, match="the ledger triage lacks fields of its spec"):
        figures_of(shortened())


def test_no_statement_is_verified_with_a_ledger_that_has_lost_fields() -> None:
    class Api:
        def list_namespaced_custom_object(self, *arguments: Any, **options: Any) -> dict[str, Any]:
            return {"items": [shortened()]}

    with pytest.raises(NotVerified, match="lacks fields of its spec"):
        find_cluster_ledger(Api(), "clinic", SPEC["jobUID"])  # type: ignore[arg-type]
