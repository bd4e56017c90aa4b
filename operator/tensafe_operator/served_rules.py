"""Finds rules that the CRD of ledgers of this cluster lacks, such as that no charge falls.

The pods of a job may write its ledger. What they may write is restricted by the schema of the CRD and its rules, which
see the ledger before and after a write, and by the admission policies, which see who writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tensafe_api.admission_policy import GUARD_VERSION, guard_version
from tensafe_api.crd import LEDGERS, custom_resource_definition

_RULES = "x-kubernetes-validations"
_SHOWN = {"description", "message", "messageExpression", "reason", "fieldPath"}
"""What may differ: it is only shown to users."""
_WEAKENING = {"nullable", "default", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}
"""What accepts or fills in more where this release has no such keyword."""


def lost_rules(definition: Mapping[str, Any]) -> list[str]:
    """Where the CRD of ledgers, as the API server returns it, accepts what that of this release refuses, such as
    `status.charges`; empty where it accepts nothing more.

    A CRD of this guard version must have every rule and limit of this release. One of a newer version is trusted to
    have stricter ones, and one of an older version has lost them all.
    """
    version = guard_version(definition)
    if version > GUARD_VERSION:
        return []
    if version < GUARD_VERSION:
        return [LEDGERS.plural]
    own, spec = _own_version(), definition["spec"]
    served = [each for each in spec["versions"] if each["served"]]
    lost = [] if all(each.get("subresources") == own["subresources"] for each in served) else ["status"]
    if (spec.get("conversion") or {}).get("strategy", "None") != "None":
        lost.append("conversion")  # a webhook could change any field
    for each in served:
        lost += _lost(own["schema"]["openAPIV3Schema"], each["schema"]["openAPIV3Schema"], ())
    return list(dict.fromkeys(lost))


@cache
def _own_version() -> Mapping[str, Any]:
    (version,) = custom_resource_definition(LEDGERS)["spec"]["versions"]
    return version  # type: ignore[no-any-return]


def _lost(own: Mapping[str, Any], served: Mapping[str, Any], path: Sequence[str]) -> Iterator[str]:
    """Paths of the fields for which the served schema lacks something that the own one has."""
    keywords = (own.keys() | _WEAKENING) - {"properties", "items", "additionalProperties", _RULES, *_SHOWN}
    kept = all(served.get(each) == own.get(each) for each in keywords)
    if not kept or not _rules(own) <= _rules(served):
        yield ".".join(path) or LEDGERS.plural
    for name, each in own.get("properties", {}).items():
        yield from _lost(each, served.get("properties", {}).get(name, {}), (*path, name))
    for part in ("items", "additionalProperties"):
        if part in own:
            yield from _lost(own[part], served.get(part, {}), path)


def _rules(schema: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """The rules of a schema without their texts."""
    found = schema.get(_RULES, ())
    return {tuple(f"{name}={each[name]}" for name in sorted(each.keys() - _SHOWN)) for each in found}
