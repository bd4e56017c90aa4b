"""A PrivacyLedger that has lost a field of its spec is recognised, and no other one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from e2e.platform.fixtures.ledger_objects import SPEC
from e2e.platform.fixtures.rule_examples import EARLIER_STEPS
from tensafe_api.resources.ledger import PrivacyLedgerSpec
from tensafe_api.spec_digest import SPEC_DIGEST_ANNOTATION, has_lost_fields, spec_digest

OPTIONAL: dict[str, Any] = {
    "lineage": "clinic/notes",
    "evaluation": "Public",
    "privateMetrics": "Internal",
    "verify": "Strict",
}
DEFAULTS = {"verify": "Standard", "privateMetrics": "Hidden", "evaluation": "Nothing"}


def ledger(spec: dict[str, Any]) -> dict[str, Any]:
    recorded = spec_digest(PrivacyLedgerSpec.model_validate(spec, by_name=False))
    return {"metadata": {"annotations": {SPEC_DIGEST_ANNOTATION: recorded}}, "spec": copy.deepcopy(spec)}


def whole() -> dict[str, Any]:
    mechanism = {**SPEC["mechanism"], "earlierSteps": EARLIER_STEPS, "adjacency": "ZeroOut"}
    return ledger({**SPEC, **OPTIONAL, "mechanism": mechanism})


@pytest.mark.parametrize("field", sorted(OPTIONAL))
def test_lost_field_is_noticed_also_when_it_has_its_default_again(field: str) -> None:
    found = whole()
    assert not has_lost_fields(found)
    del found["spec"][field]
    assert has_lost_fields(found)
    if field in DEFAULTS:
        found["spec"][field] = DEFAULTS[field]
        assert has_lost_fields(found)


@pytest.mark.parametrize("field", ["earlierSteps", "adjacency"])
def test_lost_field_of_the_mechanism_is_noticed(field: str) -> None:
    found = whole()
    del found["spec"]["mechanism"][field]
    assert has_lost_fields(found)


def test_default_that_a_later_release_fills_in_is_no_loss() -> None:
    found = ledger(SPEC)
    found["spec"] |= DEFAULTS
    found["spec"]["mechanism"]["adjacency"] = "AddOrRemoveOne"
    assert not has_lost_fields(found)


def test_ledger_of_another_client_and_one_that_cannot_be_read_are_not_judged() -> None:
    """They are reported for what they are."""
    assert not has_lost_fields({"metadata": {}, "spec": SPEC})
    unreadable = whole()
    del unreadable["spec"]["plannedSteps"]
    assert not has_lost_fields(unreadable)


def test_digest_does_not_change_between_releases() -> None:
    """With another digest, each job that an earlier release has started would stop."""
    expected = "sha256:789e70b5db0a17d1da2eff0456424c957686da1552fbbe3b322f7abdd94288a6"
    assert spec_digest(PrivacyLedgerSpec.model_validate(SPEC, by_name=False)) == expected
