"""Writes the CustomResourceDefinitions and the admission policies of ledgers, from the pydantic models.

The files go to `crds/`, for `kubectl apply -f crds/`, and to the chart:

    python -m tensafe_api.schema.crd [--check] [FOLDER]

The files are never edited by hand; a test fails when one is stale. `schema` turns models into structural schemas, and
`admission_policy` defines the policies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensafe_api.manifest import yaml_io
from tensafe_api.resources.base import Block
from tensafe_api.resources.job import GROUP, KIND, VERSION, TenSafeTrainingJob
from tensafe_api.resources.ledger import LEDGER_KIND, PrivacyLedger
from tensafe_api.resources.profile import PROFILE_KIND, TenSafeClusterProfile
from tensafe_api.schema.admission_policy import GUARD_VERSION, KEEP_ANNOTATIONS, VERSION_ANNOTATION, admission_policies
from tensafe_api.schema.structural import schema_of, with_patterns, without_defaults

DIRECTORY = Path("crds")
"""The chart has links to its files."""
DEFINITION_KIND = "CustomResourceDefinition"
_HEADER = "# Written by `python -m tensafe_api.schema.crd` from crds/tensafe_api; do not edit.\n"


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`. Columns with a `priority` above 0 are shown with `-o wide` only."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0

    def to_dict(self) -> dict[str, Any]:
        column = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description}
        return column | {"priority": self.priority} if self.priority else column


@dataclass(frozen=True)
class ResourceKind:
    """One kind of resource: its model, its names, and how `kubectl get` shows it.

    Attributes:
        model: the whole resource.
        status_default: the status that the API server shows before one is written. With a default, `has(self.status)`
            is always true, so ledgers have none.
        scope: Namespaced or Cluster.
        defaults: whether the API server fills in the defaults of absent fields. In a profile, absent means that the
            profile gives no value.
        annotations: of the CRD, besides those that keep it.
    """

    model: type[Block]
    name: str
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    status_default: Mapping[str, Any] = field(default_factory=dict)
    scope: str = "Namespaced"
    defaults: bool = True
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return f"{GROUP}_{self.plural}.yaml"


JOBS = ResourceKind(
    model=TenSafeTrainingJob,
    name=KIND,
    plural="tensafetrainingjobs",
    short_name="tsj",
    columns=(
        Column("Phase", "string", ".status.phase", "Phase of the job"),
        Column("Step", "integer", ".status.progress.step", "Number of steps done"),
        Column("Epsilon", "string", ".status.privacy.epsilonClaimed", "Epsilon of stepsClaimed steps, to sign off"),
        Column("Target", "string", ".spec.privacy.targetEpsilon", "Epsilon that must not be exceeded"),
        Column("Workers", "integer", ".status.workers.ready", "Number of workers that are ready"),
        Column("Age", "date", ".metadata.creationTimestamp", "Time since the job was created"),
        Column("Claimed", "integer", ".status.privacy.stepsClaimed", "Number of steps that EPSILON covers", 1),
        Column("Spent", "string", ".status.privacy.epsilonSpent", "Epsilon spent so far, rounded up in training", 1),
        Column("Charged", "integer", ".status.privacy.stepsCharged", "Number of steps charged so far", 1),
        Column("Checkpoint", "string", ".status.checkpoints[-1:].uri", "Newest checkpoint", 1),
    ),
    status_default={"observedGeneration": -1},
    annotations={VERSION_ANNOTATION: str(GUARD_VERSION)},
)
LEDGERS = ResourceKind(
    model=PrivacyLedger,
    name=LEDGER_KIND,
    plural="privacyledgers",
    short_name="pledger",
    columns=(
        Column("Job", "string", ".spec.jobName", "Name of the job"),
        Column("Attempt", "integer", ".status.attempt", "Attempt that acquired the ledger last"),
        Column("Step", "integer", ".status.progress.step", "Number of steps done"),
        Column("Planned", "integer", ".spec.plannedSteps", "Number of steps in the training plan"),
        Column("Target", "string", ".spec.targetEpsilon", "Epsilon that must not be exceeded"),
        Column("Outcome", "string", ".status.outcome", "How the last attempt ended"),
        Column("Age", "date", ".metadata.creationTimestamp", "Time since the ledger was created"),
        Column("Charged", "string", ".status.charges[*].steps", "Steps charged to the first attempt", 1),
    ),
    annotations={VERSION_ANNOTATION: str(GUARD_VERSION)},
)
PROFILES = ResourceKind(
    model=TenSafeClusterProfile,
    name=PROFILE_KIND,
    plural="tensafeclusterprofiles",
    short_name="tsprofile",
    columns=(
        Column("Image", "string", ".spec.image", "Image of workers and head"),
        Column("Queue", "string", ".spec.queueName", "Kueue queue in which the jobs wait"),
        Column("Age", "date", ".metadata.creationTimestamp", "Time since the profile was created"),
    ),
    scope="Cluster",
    defaults=False,
)
KINDS = (JOBS, LEDGERS, PROFILES)


def custom_resource_definition(kind: ResourceKind) -> dict[str, Any]:
    """The CustomResourceDefinition of `kind` as a mapping."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": DEFINITION_KIND,
        "metadata": {"name": f"{kind.plural}.{GROUP}", "annotations": {**KEEP_ANNOTATIONS, **kind.annotations}},
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
            "scope": kind.scope,
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if "status" in kind.model.model_fields else {}),
                    "additionalPrinterColumns": [column.to_dict() for column in kind.columns],
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
    # A CRD may only restrict the name in the metadata, and only by its form.
    name_schema = properties["metadata"]["properties"]["name"]
    properties["metadata"] = {"type": "object", "properties": {"name": name_schema}}
    if "status" in properties:
        properties["status"] = with_patterns(properties["status"])
    if kind.status_default:
        properties["status"]["default"] = dict(kind.status_default)
    schema["required"] = ["metadata", "spec"]
    return schema if kind.defaults else without_defaults(schema)


def generated_files() -> dict[str, str]:
    """The text of each file, by name."""
    written = {kind.file_name: yaml_io.write(custom_resource_definition(kind)) for kind in KINDS}
    policies = "---\n".join(yaml_io.write(document) for document in admission_policies())
    return {
        name: _HEADER + text for name, text in {**written, f"{GROUP}_{LEDGERS.plural}_guard.yaml": policies}.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files. With `--check` it only compares them: it returns 0 if all are current, 1 if one is stale."""
    parser = argparse.ArgumentParser(
        prog="python -m tensafe_api.schema.crd", description="Write the CRDs from the models."
    )
    parser.add_argument("directory", nargs="?", type=Path, default=DIRECTORY, help="(default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    options = parser.parse_args(arguments)
    command = f"python -m tensafe_api.schema.crd {options.directory}"
    return write_files(options.directory, generated_files(), command, only_check=options.check)


def write_files(folder: Path, texts: Mapping[str, str], command: str, *, only_check: bool) -> int:
    """Write generated files, or only compare them with what is there.

    Args:
        texts: the text of each file, by name.
        command: what writes them; it is printed for each file that is stale.

    Returns:
        The exit code: 1 if a file that is only checked is stale, else 0.
    """
    stale = 0
    for name, text in texts.items():
        path = folder / name
        if not only_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is stale: run `{command}`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
