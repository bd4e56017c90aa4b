"""Writes docs/reference/tensafetrainingjob.md from the schema that the API server enforces.

What comes in: the models of ``tensafe_api``, by way of the CRD's schema. What goes out: one table for each block, with
every field, its type, its default and its description, and the rules beneath. It is never edited by hand:

    python docs/generate.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensafe_api.crd import JOBS, open_api_schema
from tensafe_api.resources.job import API_VERSION, KIND

PAGE = Path(__file__).parent / "reference" / "tensafetrainingjob.md"
Schema = Mapping[str, Any]

INTRODUCTION = f"""\
# {KIND}

`{API_VERSION}`. Written by `python docs/generate.py` from `crds/tensafe_api/resources`; do not edit.

Numbers with a privacy meaning are decimal **strings**: quote them. A field marked *required* has no default, because
only the author of a manifest can know it.
"""


def fields_of(schema: Schema) -> Schema:
    """The properties of an object, or of the objects in a list; empty for anything else."""
    inner = schema.get("items", schema)
    return inner.get("properties", {})


def type_of(schema: Schema) -> str:
    """A type in words, with its bounds and its allowed values."""
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {type_of(schema['items'])}"
    if "additionalProperties" in schema:
        return "map of strings"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    return f"{schema['type']} {', '.join(bounds)}".strip()


def default_of(name: str, schema: Schema, required: Sequence[str]) -> str:
    """The fixed default, as YAML writes it; computed ones stand in the description."""
    if name in required:
        return "*required*"
    default = schema.get("default")
    if default is None or isinstance(default, Mapping | list):
        return ""
    return f"`{default}`" if "enum" in schema else f"`{json.dumps(default)}`"


def tables(path: str, schema: Schema) -> Iterator[str]:
    """The table of one block and of every block in it, outer ones first."""
    inner = schema.get("items", schema)
    lines = [f"\n## {path}\n", inner.get("description") or schema["description"], ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields_of(schema).items():
        meaning = field.get("description", "").replace("|", "\\|")
        lines.append(
            f"| `{name}` | {type_of(field)} | {default_of(name, field, inner.get('required', ()))} | {meaning} |"
        )
    rules = [rule["message"] for rule in inner.get("x-kubernetes-validations", ())]
    if rules:
        lines += ["", "Rules:", "", *(f"- {message}" for message in rules)]
    yield "\n".join(lines) + "\n"
    for name, field in fields_of(schema).items():
        if fields_of(field):
            yield from tables(f"{path}.{name}{'[]' if 'items' in field else ''}", field)


def text() -> str:
    """The page as it should be."""
    properties = open_api_schema(JOBS)["properties"]
    return INTRODUCTION + "".join(part for block in ("spec", "status") for part in tables(block, properties[block]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page, or with ``--check`` says whether it is as it should be: 0 when it is, 1 when it is stale."""
    parser = argparse.ArgumentParser(description="Write the reference page from the models.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail when the page is stale")
    options = parser.parse_args(arguments)
    if not options.check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text():
        return 0
    print(f"{PAGE.name} is stale: write it anew with `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
