"""The CustomResourceDefinitions: current, small, structural, and with a description of every field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.reasons import Phase
from tensafe_api.schema import crd
from tensafe_api.schema.structural import KEYS, structural

FOLDER = Path(__file__).parents[2] / "crds"
SCHEMAS = {kind.name: crd.open_api_schema(kind) for kind in crd.KINDS}
SCHEMA = SCHEMAS["TenSafeTrainingJob"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas inside a schema, with their paths."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def at(path: str) -> dict[str, Any]:
    return dict(nodes(SCHEMA))[path]


def test_generated_files_are_current() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.yaml")} == crd.generated_files(), "run `make crds`"


@pytest.mark.slow
def test_check_reports_stale_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", str(tmp_path)]) == 1
    assert f"is stale: run `python -m tensafe_api.schema.crd {tmp_path}`" in capsys.readouterr().err
    assert crd.main([str(tmp_path)]) == 0
    assert crd.main(["--check", str(tmp_path)]) == 0
    (tmp_path / crd.LEDGERS.file_name).write_text("edited")
    assert crd.main(["--check", str(tmp_path)]) == 1


@pytest.mark.parametrize("kind", crd.KINDS, ids=lambda kind: kind.plural)
def test_crd_is_small_enough_for_kubectl_apply(kind: crd.ResourceKind) -> None:
    """`kubectl apply` stores the object as JSON in an annotation of at most 262,144 bytes."""
    assert len(json.dumps(crd.custom_resource_definition(kind), separators=(",", ":"))) < 85_000
    assert (FOLDER / kind.file_name).stat().st_size < 125_000


@pytest.mark.parametrize("kind", crd.KINDS, ids=lambda kind: kind.plural)
def test_every_yaml_reader_reads_the_same_crd(kind: crd.ResourceKind) -> None:
    assert yaml.safe_load((FOLDER / kind.file_name).read_text()) == crd.custom_resource_definition(kind)


def test_every_field_is_described() -> None:
    for schema in SCHEMAS.values():
        fields = [(path, node) for path, node in nodes(schema) if not path.endswith("[]") and path != ".metadata"]
        assert [path for path, node in fields if not node.get("description", "").strip()] == []
        assert len(fields) > 50


def test_the_schema_is_structural() -> None:
    allowed = set(KEYS)
    for path, node in (found for schema in SCHEMAS.values() for found in nodes(schema)):
        assert set(node) <= allowed, path
        assert node["type"] in ("object", "array", "string", "integer", "boolean"), path
        assert ("properties" in node) + ("additionalProperties" in node) <= 1, path
        if node["type"] == "object" and not {"properties", "x-kubernetes-preserve-unknown-fields"} & set(node):
            assert node["additionalProperties"]["type"] == "string", path


def test_lists_and_strings_of_the_spec_are_bounded() -> None:
    """Without bounds the API server estimates the cost of rules over them from the size of the largest request."""
    for path, node in nodes(at(".spec"), ".spec"):
        if node["type"] == "array":
            assert "maxItems" in node, path
        if node["type"] == "string":
            assert "maxLength" in node or "enum" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node["type"] == "integer":
            assert "minimum" in node, path


def test_lists_of_the_status_are_keyed_where_entries_have_a_name() -> None:
    for path, node in nodes(at(".status"), ".status"):
        if node["type"] == "array" and path != ".status.attempts[].failedPods":  # one pod may fail in several ways
            assert node["x-kubernetes-list-type"] == "map", path
            for key in node["x-kubernetes-list-map-keys"]:
                assert key in node["items"]["required"], path


def test_required_fields_and_defaults() -> None:
    assert SCHEMA["required"] == ["metadata", "spec"]
    assert at(".spec")["required"] == ["model", "dataset", "privacy", "checkpoint", "cluster"]
    assert at(".spec.dataset.unit")["required"] == ["kind", "atLeast"]
    assert at(".spec.privacy")["required"] == ["targetEpsilon"]
    assert at(".spec.training")["default"] == {}
    assert at(".spec.lora")["default"] == {}
    assert "default" not in at(".spec.training.learningRate")
    assert at(".status")["default"] == {"observedGeneration": -1}
    assert at(".status.phase")["enum"] == [phase.value for phase in Phase]
    for path in (".spec.privacy.targetDelta", ".spec.training.steps", ".spec.lora.alpha", ".status.privacy"):
        assert "default" not in at(path), path


def test_fields_without_an_implementation_are_absent() -> None:
    names = {path.rpartition(".")[2] for path, _ in nodes(SCHEMA)}
    assert not names & {"budgetRef", "identity", "identities", "hideStepTime"}


def test_printer_columns_and_names() -> None:
    version = crd.custom_resource_definition(crd.JOBS)["spec"]["versions"][0]
    columns = version["additionalPrinterColumns"]
    assert [column["name"].upper() for column in columns] == [
        "PHASE",
        "STEP",
        "EPSILON",
        "TARGET",
        "WORKERS",
        "AGE",
        "CLAIMED",
        "SPENT",
        "CHARGED",
        "CHECKPOINT",
    ]
    wide = [column["name"] for column in columns if column.get("priority")]
    assert wide == ["Claimed", "Spent", "Charged", "Checkpoint"]
    fields = dict(nodes(SCHEMA))
    for column in columns:
        path = column["jsonPath"].replace("[-1:]", "[]")
        if column["type"] != "date":
            assert fields[path]["type"] == column["type"]
    assert version["subresources"] == {"status": {}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({}, "one type everywhere"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "no alternatives"),
        ({"type": "array", "prefixItems": []}, "no prefixItems"),
    ],
)
def test_schema_that_cannot_be_structural_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        structural(schema, {})
