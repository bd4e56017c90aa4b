"""Writes what a cluster enforces: the CustomResourceDefinitions, and the policy that guards ledgers.

In come the pydantic models; out go the files of `crds/`, for `kubectl apply -f crds/`, and the chart's copies of them:

    python -m tensafe_api.crd [--check] [DIR ...]

Nothing there is edited by hand, and a test fails when a file is stale. `schema` makes models structural, `guard` writes
the policy.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensafe_api import yaml_io
from tensafe_api.admission_policy import KEEP_ANNOTATIONS, admission_policies
from tensafe_api.resources.base import Block
from tensafe_api.resources.job import GROUP, KIND, VERSION, TenSafeTrainingJob
from tensafe_api.resources.ledger import LEDGER_KIND, PrivacyLedger
from tensafe_api.schema import schema_of, with_patterns

DIRECTORIES = (Path("crds"), Path("charts/tensafe/files/crds"))
_HEADER = "# Written by `python -m tensafe_api.crd` from crds/tensafe_api; do not edit.\n"


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; those of another `priority` than 0 show with `-o wide` alone."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0

    def written(self) -> dict[str, Any]:
        column = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description}
        return column | {"priority": self.priority} if self.priority else column


@dataclass(frozen=True)
class ResourceKind:
    """One kind of resource: its model, its names, and how `kubectl get` shows it.

    Attributes:
        model: the whole resource.
        status_default: what the API server shows where no status was written yet. A default makes `has(self.status)`
            true always, so ledgers have none.
    """

    model: type[Block]
    name: str
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    status_default: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return f"{GROUP}_{self.plural}.yaml"


JOBS = ResourceKind(
    model=TenSafeTrainingJob,
    name=KIND,
    plural="tensafetrainingjobs",
    short_name="tsj",
    columns=(
        Column("Phase", "string", ".status.phase", "Where the job is"),
        Column("Step", "integer", ".status.progress.step", "Steps done"),
        Column("Epsilon", "string", ".status.privacy.epsilonClaimed", "Epsilon to sign off"),
        Column("Target", "string", ".spec.privacy.targetEpsilon", "Epsilon that must not be exceeded"),
        Column("Workers", "integer", ".status.workers.ready", "Workers at work"),
        Column("Age", "date", ".metadata.creationTimestamp", "Time since the job was made"),
        Column("Spent", "string", ".status.privacy.epsilonSpent", "Epsilon of the steps charged so far", 1),
        Column("Checkpoint", "string", ".status.checkpoints[-1:].uri", "Newest checkpoint", 1),
    ),
    status_default={"observedGeneration": -1},
)
LEDGERS = ResourceKind(
    model=PrivacyLedger,
    name=LEDGER_KIND,
    plural="privacyledgers",
    short_name="pledger",
    columns=(
        Column("Job", "string", ".spec.jobName", "Name of the job"),
        Column("Attempt", "integer", ".status.attempt", "The attempt that claimed last"),
        Column("Step", "integer", ".status.progress.step", "Steps done"),
        Column("Planned", "integer", ".spec.plannedSteps", "Steps of the plan"),
        Column("Target", "string", ".spec.targetEpsilon", "Epsilon that must not be exceeded"),
        Column("Outcome", "string", ".status.outcome", "How the last attempt ended"),
        Column("Age", "date", ".metadata.creationTimestamp", "Time since the ledger was opened"),
        Column("Charged", "string", ".status.charges[*].steps", "Steps charged to the first attempt", 1),
    ),
)
KINDS = (JOBS, LEDGERS)


def custom_resource_definition(kind: ResourceKind) -> dict[str, Any]:
    """The CustomResourceDefinition of `kind` as a mapping."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}", "annotations": dict(KEEP_ANNOTATIONS)},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short_name],
                "categories": ["tensafe"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [column.written() for column in kind.columns],
                    "schema": {"openAPIV3Schema": open_api_schema(kind)},
                }
            ],
        },
    }


def open_api_schema(kind: ResourceKind) -> dict[str, Any]:
    """The structural schema of the whole resource."""
    schema = schema_of(kind.model)
    properties = schema["properties"]
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string", "description": properties[name]["description"]}
    # Of the metadata a CRD may say something about the name alone, and only by form.
    name_schema = properties["metadata"]["properties"]["name"]
    properties["metadata"] = {"type": "object", "properties": {"name": name_schema}}
    properties["status"] = with_patterns(properties["status"])
    if kind.status_default:
        properties["status"]["default"] = dict(kind.status_default)
    schema["required"] = ["metadata", "spec"]
    return schema


def generated_files() -> dict[str, str]:
    """The text of each file, by name."""
    written = {kind.file_name: yaml_io.write(custom_resource_definition(kind)) for kind in KINDS}
    guard = "---\n".join(yaml_io.write(document) for document in admission_policies())
    return {name: _HEADER + text for name, text in {**written, f"{GROUP}_{LEDGERS.plural}_guard.yaml": guard}.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files, or with `--check` says whether they are as they should be: 0 when they are, 1 when one is
    stale.
    """
    parser = argparse.ArgumentParser(prog="python -m tensafe_api.crd", description="Write the CRDs from the models.")
    parser.add_argument("directories", nargs="*", type=Path, help="where the files lie (crds, and in the chart)")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail when a file is stale")
    options = parser.parse_args(arguments)
    stale = 0
    for directory, (name, text) in itertools.product(options.directories or DIRECTORIES, generated_files().items()):
        path = directory / name
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is stale: write it anew with `python -m tensafe_api.crd {directory}`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
