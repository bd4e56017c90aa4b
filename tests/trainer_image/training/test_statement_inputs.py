"""Every fact of a statement comes from the ledger, or from the components that did the work."""

from __future__ import annotations

import importlib.metadata
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from tensafe_api.statement.contents import AggregationStatement, StatementInputs
from tensorguard.training.statement_inputs import statement_inputs

OF_THE_LEDGER = ("attempt", "steps_charged", "steps_recharged", "events", "dataset_digest")
OF_ITS_SPEC = (
    "job_name",
    "job_uid",
    "mechanism",
    "unit_at_least",
    "planned_steps",
    "target_epsilon",
    "delta",
    "accountant",
    "lineage",
)
AGGREGATION = AggregationStatement(protocol="sum", assumed=(), not_covered=())


def inputs(evaluation: Any = None, missing: str | None = None, unusable: str | None = None) -> StatementInputs:
    """Made of values that name where they come from."""
    state: Any = SimpleNamespace(
        spec=SimpleNamespace(**{name: f"spec.{name}" for name in OF_ITS_SPEC}),
        head="state.head",
        length="state.length",
        **{name: f"state.{name}" for name in OF_THE_LEDGER},
    )
    dataset = SimpleNamespace(
        unit=SimpleNamespace(kind="User", column="unit.column", missing=missing), unusable=unusable
    )
    spec = SimpleNamespace(
        dataset=dataset, evaluation=evaluation, observability=SimpleNamespace(private_metrics="Internal")
    )
    components: Any = SimpleNamespace(
        job=SimpleNamespace(spec=spec),
        dimension="dimension",
        noise=SimpleNamespace(total_variation="total variation"),
        identity="identity",
        initial=SimpleNamespace(summary="earlier adapter"),
        remarks="remarks",
    )
    return statement_inputs(
        components, "OneMachine", AGGREGATION, "image", state, 7, "sha256:a", audit_log=("audit head", 9)
    )


def test_every_fact_has_its_source() -> None:
    expected = {
        **{name: f"state.{name}" for name in OF_THE_LEDGER},
        **{name: f"spec.{name}" for name in OF_ITS_SPEC},
        "place": "OneMachine",
        "step": 7,
        "dimension": "dimension",
        "noise_distance": "total variation",
        "aggregation": AGGREGATION,
        "adapter_digest": "sha256:a",
        "ledger_head": "state.head",
        "ledger_length": "state.length",
        "audit_log": ("audit head", 9),
        "model": "identity",
        "unit_column": "unit.column",
        "own_units": False,
        "refuses_records": True,
        "started_from": "earlier adapter",
        "evaluation": None,
        "private_metrics": "Internal",
        "remarks": "remarks",
        "image": "image",
        "ray_version": importlib.metadata.version("ray"),
    }
    found = inputs()
    assert {each.name: getattr(found, each.name) for each in fields(found)} == expected


@pytest.mark.parametrize("visibility", ["Public", "Private"])
def test_evaluation_set_is_named_with_its_visibility(visibility: str) -> None:
    evaluation = SimpleNamespace(visibility=visibility, uri="s3://b/held-out")
    assert inputs(evaluation).evaluation == f"{visibility}: s3://b/held-out"


def test_statement_records_that_records_without_an_id_are_units() -> None:
    assert [inputs(missing=missing).own_units for missing in (None, "Refuse", "OwnUnit")] == [False, False, True]


@pytest.mark.parametrize(("unusable", "refuses"), [(None, True), ("Refuse", True), ("Skip", False)])
def test_statement_records_whether_an_unusable_record_ends_the_job(unusable: str | None, refuses: bool) -> None:
    assert inputs(unusable=unusable).refuses_records == refuses
