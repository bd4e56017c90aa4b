"""Turns a pydantic model into a structural schema, which the API server requires.

A structural schema has no references and no alternatives, and one type at every node. So optional fields are absent
instead of null, and CEL rules replace the alternatives of pydantic. `crd` writes the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api.resources.base import Block
from tensafe_api.resources.string_form import pattern_of

KEYS = (
    "type",
    "format",
    "description",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "required",
    "items",
    "additionalProperties",
    "x-kubernetes-preserve-unknown-fields",
    "properties",
    "x-kubernetes-validations",
)
"""The keys that a structural schema may have, in the order in which they are written."""


def schema_of(model: type[Block]) -> dict[str, Any]:
    """The structural schema of a model."""
    generated = model.model_json_schema()
    return structural(generated, generated.pop("$defs", {}))


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema of pydantic as a structural schema: references are inlined, alternatives with null become optional.

    Raises:
        ValueError: the schema has a key or an alternative that a structural schema cannot have.
    """
    merged = _merged(schema, definitions)
    if "type" not in merged:
        raise ValueError(f"a structural schema needs one type everywhere: {merged}")
    unknown = set(merged) - set(KEYS) - {"title"}
    if unknown:
        raise ValueError(f"a structural schema has no {', '.join(sorted(unknown))}")
    written = {key: merged[key] for key in KEYS if key in merged}
    if written.get("additionalProperties") is False:
        del written["additionalProperties"]
    if written.get("default") in (None, "", []):
        written.pop("default", None)
    if "description" in written:
        written["description"] = " ".join(written["description"].split("\n\n")[0].split())
    if "items" in written:
        written["items"] = structural(written["items"], definitions)
    if "additionalProperties" in written:
        written["additionalProperties"] = structural(written["additionalProperties"], definitions)
    if "properties" in written:
        written["properties"] = {name: structural(inner, definitions) for name, inner in written["properties"].items()}
    return written


def with_patterns(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A structural schema with patterns instead of CEL rules for the forms of strings.

    Programs write the status, so its errors need no message for users. The rules would take a tenth of the time of a
    status write in the API server.
    """
    written = dict(schema)
    if "properties" in written:
        written["properties"] = {name: with_patterns(inner) for name, inner in written["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in written:
            written[key] = with_patterns(written[key])
    rules = list(written.get("x-kubernetes-validations", ()))
    pattern = pattern_of(rules[0]["rule"]) if rules else None
    if pattern is not None:
        form = rules.pop(0)["rule"]
        unguarded = [rule | {"rule": rule["rule"].removeprefix(f"!{form} || ")} for rule in rules]
        written |= {"pattern": f"^({pattern})$", "x-kubernetes-validations": unguarded}
    return {key: written[key] for key in KEYS if written.get(key, []) != []}


def without_defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A structural schema without its defaults."""
    written = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in written:
        written["properties"] = {name: without_defaults(inner) for name, inner in written["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in written:
            written[key] = without_defaults(written[key])
    return written


def _merged(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with a reference, an alternative to null, and a constant replaced by their meaning."""
    merged = dict(schema)
    if "$ref" in merged:
        target = definitions[merged.pop("$ref").rpartition("/")[2]]
        merged = _merged(target, definitions) | merged
    if "anyOf" in merged:
        choices = [choice for choice in merged.pop("anyOf") if choice != {"type": "null"}]
        if len(choices) != 1:
            raise ValueError(f"a structural schema has no alternatives: {choices}")
        merged = _merged(choices[0], definitions) | merged
    if "const" in merged:
        merged["enum"] = [merged.pop("const")]
    return merged
