"""The version by which an operator knows older policies and CRDs."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tensafe_api.schema.admission_policy import GUARD_VERSION, VERSION_ANNOTATION, admission_policies, guard_version
from tensafe_api.schema.crd import JOBS, LEDGERS, custom_resource_definition

SHOWN = {"description", "message", "additionalPrinterColumns", "annotations"}
"""What may differ without another version: it is only shown to users."""


def installed() -> list[dict[str, Any]]:
    """What the version is of: the policies with their bindings, and the CRDs of jobs and ledgers."""
    return [*admission_policies(), *(custom_resource_definition(kind) for kind in (JOBS, LEDGERS))]


def without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_texts(each) for name, each in value.items() if name not in SHOWN}
    return [without_texts(each) for each in value] if isinstance(value, list) else value


def test_everything_that_an_operator_needs_has_the_version() -> None:
    assert {guard_version(each) for each in installed()} == {GUARD_VERSION}


def test_version_belongs_to_these_rules_and_fields() -> None:
    """After a change, raise GUARD_VERSION if a release had the one before: older ones drop fields, or lack rules."""
    text = json.dumps(without_texts(installed()), sort_keys=True)
    assert (GUARD_VERSION, hashlib.sha256(text.encode()).hexdigest()[:12]) == (3, "135321d25a4f")


@pytest.mark.parametrize("text", ["", "new", "-1", "1" * 10])
def test_version_that_is_no_number_is_none(text: str) -> None:
    assert guard_version({"metadata": {"annotations": {VERSION_ANNOTATION: text}}}) == 0
