"""Finds fields of jobs and ledgers that the API server drops, because its CRDs are those of an earlier release.

It leaves them out of stored objects too when it reads them, and any write of such an object deletes them. What is
computed from the rest, such as ε, may be too small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from tensafe_api.crd import DEFINITION_KIND, JOBS, LEDGERS, open_api_schema
from tensafe_api.reasons import Reason
from tensafe_api.resources.job import GROUP, VERSION
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.objects import Manifest

_MISSING = object()


class FieldsDropped(Exception):
    """The API server may drop fields of jobs or ledgers that this release knows. `str()` says why."""

    @classmethod
    def because(cls, why: str) -> FieldsDropped:
        """The error with its fix."""
        return cls(f"{why}: {Reason.GUARD_MISSING.fix}")


class LedgerShortened(FieldsDropped):
    """The ledger of a job has lost fields for good. `str()` is always the same text."""


def why_dropped(fields: str) -> str:
    """Why the API server drops these fields."""
    return f"the CRDs of the cluster are older than the operator, and drop {fields}"


async def served_definitions(api: ApiClient) -> dict[str, Manifest]:
    """The CRDs of jobs and ledgers, by the plural of their kind, without those that do not exist.

    Raises:
        ApiUnavailable, ApiError: if the API server does not answer, or this client may not read the CRDs.
    """
    found = {kind.plural: await api.get(DEFINITION_KIND, None, f"{kind.plural}.{GROUP}") for kind in (JOBS, LEDGERS)}
    return {plural: each for plural, each in found.items() if each is not None}


def dropped_fields(definitions: Mapping[str, Manifest]) -> list[str]:
    """The fields that this release has and the CRDs do not, such as `tensafetrainingjobs.spec.lora.initFrom`. Of nested
    fields only the outermost, and of a kind that is not served its name. The API server also drops what the version in
    which it stores objects lacks.

    Args:
        definitions: see `served_definitions`.
    """
    dropped = []
    for kind in (JOBS, LEDGERS):
        found = definitions.get(kind.plural)
        versions = found["spec"]["versions"] if found is not None else ()
        if not any(each["name"] == VERSION and each["served"] for each in versions):
            dropped.append(kind.plural)
        used = [each for each in versions if each["storage"] or (each["name"] == VERSION and each["served"])]
        kept = [set(_fields(each["schema"]["openAPIV3Schema"])) for each in used]
        missing = {field for fields in kept for field in _own_fields()[kind.plural] - fields}
        outermost = {each for each in missing if not any(each.startswith(f"{other}.") for other in missing)}
        dropped += [f"{kind.plural}.{each}" for each in sorted(outermost)]
    return dropped


def lost_field(before: Any, after: Any, path: str) -> str:
    """The path of the first field that `before` has and `after` lacks; empty without one."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        inner = ((before[name], after.get(name, _MISSING), f"{path}.{name}") for name in before)
    elif isinstance(before, list) and isinstance(after, list):
        inner = (
            (one, other, f"{path}[{number}]") for number, (one, other) in enumerate(zip(before, after, strict=False))
        )
    else:
        return path if after is _MISSING else ""
    return next((lost for each in inner if (lost := lost_field(*each))), "")


@cache
def _own_fields() -> Mapping[str, frozenset[str]]:
    """The fields of this release, by the plural of their kind."""
    return {kind.plural: frozenset(_fields(open_api_schema(kind))) for kind in (JOBS, LEDGERS)}


def _fields(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, each in (schema.get("properties") or {}).items():
        yield f"{path}{name}"
        yield from _fields(each, f"{path}{name}.")
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), Mapping):
            yield from _fields(schema[part], path)
