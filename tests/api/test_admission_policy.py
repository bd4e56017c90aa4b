"""Whether the installed policies are those that protect ledgers: any that were weakened count as missing."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tensafe_api.admission_policy import GUARD_VERSION, VERSION_ANNOTATION, admission_policies, is_enforced

Pair = tuple[dict[str, Any], dict[str, Any]]


def installed(number: int) -> Pair:
    """A policy and its binding, with the defaults of the API server."""
    policy, binding = copy.deepcopy(admission_policies()[2 * number : 2 * number + 2])
    matched = policy["spec"]["matchConstraints"]
    matched |= {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    for rule in matched["resourceRules"]:
        rule["scope"] = "*"
    policy["status"] = {"observedGeneration": 1}
    return policy, binding


def with_version(pair: Pair, version: str) -> None:
    pair[0]["metadata"]["annotations"][VERSION_ANNOTATION] = version


def without_first_rule(pair: Pair) -> None:
    del pair[0]["spec"]["validations"][0]


def with_a_rule_that_always_holds(pair: Pair) -> None:
    pair[0]["spec"]["validations"][0]["expression"] = "true"


def for_other_operations(pair: Pair) -> None:
    pair[0]["spec"]["matchConstraints"]["resourceRules"][0]["operations"] = ["CREATE"]


WEAKENED: dict[str, Callable[[Pair], object]] = {
    "ignored failures": lambda pair: pair[0]["spec"].update(failurePolicy="Ignore"),
    "match conditions": lambda pair: pair[0]["spec"].update(matchConditions=[{"name": "a", "expression": "false"}]),
    "one rule less": without_first_rule,
    "a rule that always holds": with_a_rule_that_always_holds,
    "other operations": for_other_operations,
    "some namespaces": lambda pair: pair[0]["spec"]["matchConstraints"].update(
        namespaceSelector={"matchLabels": {"a": "b"}}
    ),
    "some objects": lambda pair: pair[0]["spec"]["matchConstraints"].update(objectSelector={"matchLabels": {"a": "b"}}),
    "excluded resources": lambda pair: pair[0]["spec"]["matchConstraints"].update(excludeResourceRules=[{}]),
    "some names": lambda pair: pair[0]["spec"]["matchConstraints"]["resourceRules"][0].update(resourceNames=["a"]),
    "other versions": lambda pair: pair[0]["spec"]["matchConstraints"]["resourceRules"][0].update(apiVersions=["v9"]),
    "another scope": lambda pair: pair[0]["spec"]["matchConstraints"]["resourceRules"][0].update(scope="Cluster"),
    "parameters that are missing": lambda pair: pair[0]["spec"].update(paramKind={"kind": "ConfigMap"}),
    "binding with parameters": lambda pair: pair[1]["spec"].update(paramRef={"name": "a"}),
    "binding that audits": lambda pair: pair[1]["spec"].update(validationActions=["Audit"]),
    "binding of another policy": lambda pair: pair[1]["spec"].update(policyName="other"),
    "binding for some namespaces": lambda pair: pair[1]["spec"].update(
        matchResources={"namespaceSelector": {"matchLabels": {"a": "b"}}}
    ),
    "older version": lambda pair: with_version(pair, str(GUARD_VERSION - 1)),
    "no version": lambda pair: pair[0]["metadata"].pop("annotations"),
    "a version that is no number": lambda pair: with_version(pair, "new"),
}


@pytest.mark.parametrize("number", range(2))
def test_policies_of_this_release_are_enforced(number: int) -> None:
    assert is_enforced(*installed(number))


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("name", WEAKENED)
def test_weakened_policy_is_not_enforced(number: int, name: str) -> None:
    pair = installed(number)
    WEAKENED[name](pair)
    assert not is_enforced(*pair)


@pytest.mark.parametrize("number", range(2))
def test_newer_policies_may_have_other_rules(number: int) -> None:
    pair = installed(number)
    with_version(pair, str(GUARD_VERSION + 1))
    with_a_rule_that_always_holds(pair)
    assert is_enforced(*pair)
    pair[0]["spec"]["failurePolicy"] = "Ignore"
    assert not is_enforced(*pair)


def test_version_belongs_to_these_rules() -> None:
    """After a change of the policies, raise GUARD_VERSION: an operator must not take the older ones for its own."""
    specs = [each["spec"] for each in admission_policies()]
    digest = hashlib.sha256(json.dumps(specs, sort_keys=True).encode()).hexdigest()[:12]
    assert (GUARD_VERSION, digest) == (3, "4bb83ef3817d")
