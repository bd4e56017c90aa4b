"""A CRD of ledgers that accepts more than that of this release counts as a missing guard."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tensafe_api.admission_policy import GUARD_VERSION, VERSION_ANNOTATION
from tensafe_api.crd import LEDGERS, custom_resource_definition
from tensafe_operator.served_rules import lost_rules

Schema = dict[str, Any]


def definition() -> dict[str, Any]:
    return copy.deepcopy(custom_resource_definition(LEDGERS))


def schema_of(found: dict[str, Any]) -> Schema:
    return found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]  # type: ignore[no-any-return]


def charges_of(found: dict[str, Any]) -> Schema:
    return schema_of(found)["properties"]["status"]["properties"]["charges"]  # type: ignore[no-any-return]


def with_version(found: dict[str, Any], version: str) -> None:
    found["metadata"]["annotations"][VERSION_ANNOTATION] = version


def without_rules(schema: Schema) -> None:
    """Remove the rules of a schema and of everything in it."""
    schema.pop("x-kubernetes-validations", None)
    for each in schema.values():
        if isinstance(each, dict):
            without_rules(each)


def with_a_rule_for_old_ledgers(found: dict[str, Any]) -> None:
    schema_of(found)["properties"]["status"]["x-kubernetes-validations"][0]["optionalOldSelf"] = True


def with_a_second_version_without_rules(found: dict[str, Any]) -> None:
    second = copy.deepcopy(found["spec"]["versions"][0])
    without_rules(second["schema"])
    found["spec"]["versions"].append({**second, "name": "v1beta1", "storage": False})


WEAKENED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "without rules": (lambda found: without_rules(schema_of(found)), "status"),
    "one rule less": (
        lambda found: schema_of(found)["properties"]["status"]["x-kubernetes-validations"].pop(),
        "status",
    ),
    "rule for old ledgers": (with_a_rule_for_old_ledgers, "status"),
    "negative charges": (lambda found: charges_of(found)["items"]["properties"]["steps"].pop("minimum"), "steps"),
    "another limit": (lambda found: charges_of(found).update(maxItems=10**6), "status.charges"),
    "null": (lambda found: charges_of(found).update(nullable=True), "status.charges"),
    "charges not required": (lambda found: schema_of(found)["properties"]["status"].pop("required"), "status"),
    "status in the object": (lambda found: found["spec"]["versions"][0].pop("subresources"), "status"),
    "second version without rules": (with_a_second_version_without_rules, "status"),
    "conversion by a webhook": (
        lambda found: found["spec"].update(conversion={"strategy": "Webhook", "webhook": {}}),
        "conversion",
    ),
    "steps by default": (lambda found: charges_of(found)["items"]["properties"]["steps"].update(default=1), "steps"),
    "unknown fields": (
        lambda found: schema_of(found)["properties"]["status"].update({"x-kubernetes-preserve-unknown-fields": True}),
        "status",
    ),
    "a version that is no number": (lambda found: with_version(found, "9" * 5000), "privacyledgers"),
    "older version": (lambda found: with_version(found, str(GUARD_VERSION - 1)), "privacyledgers"),
    "no version": (lambda found: found["metadata"].pop("annotations"), "privacyledgers"),
}


def test_crd_of_this_release_has_every_rule() -> None:
    assert lost_rules(definition()) == []


@pytest.mark.parametrize("name", WEAKENED)
def test_crd_that_accepts_more_has_lost_rules(name: str) -> None:
    weaken, field = WEAKENED[name]
    found = definition()
    weaken(found)
    assert any(each.endswith(field) for each in lost_rules(found)), lost_rules(found)


def test_crd_may_have_other_texts_more_fields_and_versions_that_are_not_served() -> None:
    found = definition()
    with_a_second_version_without_rules(found)
    found["spec"]["versions"][1]["served"] = False
    status = schema_of(found)["properties"]["status"]
    status["description"] = status["x-kubernetes-validations"][0]["message"] = "other words"
    status["properties"]["later"] = {"type": "string"}
    status["x-kubernetes-validations"].append({"rule": "size(self.charges) < 10"})
    assert lost_rules(found) == []


def test_newer_crd_may_have_other_rules() -> None:
    found = definition()
    with_version(found, str(GUARD_VERSION + 1))
    schema_of(found)["properties"]["status"]["x-kubernetes-validations"] = [{"rule": "true"}]
    assert lost_rules(found) == []


def without_texts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_texts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    texts = [name for name in ("description", "message") if isinstance(schema.get(name), str)]
    return {name: without_texts(each) for name, each in schema.items() if name not in texts}


def test_version_belongs_to_these_rules() -> None:
    """After a change of a rule or a limit, raise GUARD_VERSION, or an operator of the release before stops every job
    during an upgrade. A new field needs only the new digest.
    """
    text = json.dumps(without_texts(schema_of(definition())), sort_keys=True)
    assert (GUARD_VERSION, hashlib.sha256(text.encode()).hexdigest()[:12]) == (3, "1dd39dcbb3fb")
