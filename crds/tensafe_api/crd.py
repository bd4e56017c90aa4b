"""Writes the CustomResourceDefinition of `TenSafeTrainingJob` from the models.

In come the pydantic models; out goes `crds/tensafe.io_tensafetrainingjobs.yaml`, which the API server enforces:

    python -m tensafe_api.crd [--check] [DIR]

`kubectl apply` and the chart act next. The file is never edited by hand, and a test fails when it is stale.

The schema is *structural*, as Kubernetes demands: no references, no alternatives, one type everywhere. So optional
fields are absent instead of null, and what pydantic says by alternatives is said by rules in CEL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensafe_api import yamltext
from tensafe_api.resources.job import GROUP, KIND, VERSION, TenSafeTrainingJob

PLURAL = "tensafetrainingjobs"
FILE_NAME = f"{GROUP}_{PLURAL}.yaml"

_HEADER = "# Written by `python -m tensafe_api.crd` from crds/tensafe_api/resources; do not edit.\n"
_COLUMNS = (
    ("Phase", "string", ".status.phase", "Where the job is", 0),
    ("Step", "integer", ".status.progress.step", "Steps done", 0),
    ("Epsilon", "string", ".status.privacy.epsilonClaimed", "Epsilon to sign off", 0),
    ("Target", "string", ".spec.privacy.targetEpsilon", "Epsilon that must not be exceeded", 0),
    ("Workers", "integer", ".status.workers.ready", "Workers at work", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was made", 0),
    ("Checkpoint", "string", ".status.checkpoints[-1:].uri", "Newest checkpoint", 1),
)


def custom_resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition as a mapping."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["tsj"],
                "categories": ["tensafe"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                    "schema": {"openAPIV3Schema": open_api_schema()},
                }
            ],
        },
    }


def open_api_schema() -> dict[str, Any]:
    """The structural schema of the whole resource."""
    generated = TenSafeTrainingJob.model_json_schema()
    schema = structural(generated, generated.pop("$defs"))
    properties = schema["properties"]
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string", "description": properties[name]["description"]}
    name_schema = properties["metadata"]["properties"]["name"]
    properties["metadata"] = {"type": "object", "properties": {"name": name_schema}}
    properties["status"]["default"] = {"observedGeneration": -1}
    schema["required"] = ["metadata", "spec"]
    return schema


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """pydantic's JSON schema as a structural one: references inlined, alternatives with null made optional.

    Raises:
        ValueError: the schema says something that a structural schema cannot.
    """
    merged = _merged(schema, definitions)
    if "type" not in merged:
        raise ValueError(f"a structural schema needs one type everywhere: {merged}")
    unknown = set(merged) - set(_KEYS) - {"title"}
    if unknown:
        raise ValueError(f"a structural schema has no {', '.join(sorted(unknown))}")
    written = {key: merged[key] for key in _KEYS if key in merged}
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


_KEYS = (
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
    "properties",
    "x-kubernetes-validations",
)
"""What a structural schema may say, in the order in which it is written."""


def _merged(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its reference, its alternative beside null, and its constant replaced by what they stand for."""
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


def _column(name: str, kind: str, path: str, description: str, priority: int) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | {"priority": priority} if priority else column


def text() -> str:
    """The file as it should be."""
    return _HEADER + yamltext.write(custom_resource_definition())


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the file, or with `--check` says whether it is as it should be: 0 when it is, 1 when it is stale."""
    parser = argparse.ArgumentParser(prog="python -m tensafe_api.crd", description="Write the CRD from the models.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path("crds"), help="where the file lies (crds)")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail when the file is stale")
    options = parser.parse_args(arguments)
    path: Path = options.directory / FILE_NAME
    if not options.check:
        path.write_text(text(), encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text():
        return 0
    print(f"{path} is stale: write it anew with `python -m tensafe_api.crd {options.directory}`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
