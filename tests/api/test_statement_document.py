"""The form of a statement: what `build_statement` writes is read; anything else is refused by the name of a field."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tensafe_api.resources.mechanism import MAX_EARLIER_TRAININGS
from tensafe_api.statement.document import StatementDocument, StatementError, parse_statement


@pytest.fixture
def statement() -> dict[str, Any]:
    """The statement that test_statement.py compares with `build_statement`."""
    document: dict[str, Any] = json.loads(Path(__file__).with_name("statement.json").read_text("utf-8"))
    return document


def test_statement_that_is_written_is_read_without_loss(statement: dict[str, Any]) -> None:
    document = parse_statement(statement)
    assert document.claim.epsilon == "7.33"
    assert document.mechanism.noise_distance_per_draw == "1.972e-31"
    assert document.model_dump(by_alias=True, mode="json", exclude_unset=True) == statement


def test_json_schema_accepts_the_statement_and_refuses_one_without_a_claim(statement: dict[str, Any]) -> None:
    schema = StatementDocument.model_json_schema(by_alias=True)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    validator.validate(statement)
    del statement["claim"]
    assert [error.message for error in validator.iter_errors(statement)] == ["'claim' is a required property"]


def test_statement_has_no_more_events_than_a_job_can_have(statement: dict[str, Any]) -> None:
    statement["events"] *= MAX_EARLIER_TRAININGS + 1
    parse_statement(statement)
    statement["events"].append(statement["events"][0])
    with pytest.raises(StatementError, match=r"^events: List should have at most 65 items"):
        parse_statement(statement)


def test_field_of_a_later_release_is_kept(statement: dict[str, Any]) -> None:
    statement["claim"]["audited"] = "yes"
    assert parse_statement(statement).model_dump(by_alias=True)["claim"]["audited"] == "yes"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("claim.epsilon", "about 7"),
        ("claim.epsilon", 7.33),
        ("claim.epsilon", "7.3301"),
        ("claim.epsilon", "-1"),
        ("claim.delta", "nan"),
        ("claim.delta", "0"),
        ("claim.delta", "1"),
        ("claim.delta", "1e-5000"),
        ("claim.unit", "Group"),
        ("claim.steps", -1),
        ("claim.steps", "2250"),
        ("job.name", None),
        ("mechanism.sampleRate", "1.5"),
        ("mechanism.gridBits", 99),
        ("events", []),
        ("accounting.accountant", "GDP"),
        ("assumed", "nothing"),
        ("assumed", [{"a": 1}]),
        ("model", ["a"]),
    ],
)
def test_malformed_field_is_named(path: str, value: Any, statement: dict[str, Any]) -> None:
    *parents, name = path.split(".")
    changed = copy.deepcopy(statement)
    block = changed
    for parent in parents:
        block = block[parent]
    block[name] = value
    with pytest.raises(StatementError, match=f"^{path.replace('.', '[.]')}"):
        parse_statement(changed)


STARTED_FROM = {
    "uri": "s3://clinic/first/final",
    "adapter": "sha256:1",
    "statement": "sha256:2",
    "epsilon": "4.5",
    "delta": "0.00001",
    "noiseDistance": "1.5e-21",
}


def test_adapter_that_the_training_started_from_is_read_without_loss(statement: dict[str, Any]) -> None:
    statement["startedFrom"] = STARTED_FROM
    document = parse_statement(statement)
    assert document.started_from is not None and document.started_from.noise_distance == "1.5e-21"
    assert document.model_dump(by_alias=True, mode="json", exclude_unset=True) == statement
    validator = Draft202012Validator(StatementDocument.model_json_schema(by_alias=True))
    validator.validate(statement)
    for value in (None, {}):
        assert not validator.is_valid({**statement, "startedFrom": value})


@pytest.mark.parametrize("name", STARTED_FROM)
def test_adapter_that_the_training_started_from_is_described_in_full(name: str, statement: dict[str, Any]) -> None:
    for without in ({}, {name: None}, {name: ["text"]}):
        statement["startedFrom"] = {**{each: STARTED_FROM[each] for each in STARTED_FROM if each != name}, **without}
        with pytest.raises(StatementError, match=rf"^startedFrom\.{name}: "):
            parse_statement(statement)


def test_started_from_null_is_refused(statement: dict[str, Any]) -> None:
    statement["startedFrom"] = None
    with pytest.raises(StatementError, match=r"^startedFrom: it is null"):
        parse_statement(statement)


@pytest.mark.parametrize("name", ["auditLogHead", "auditLogLength"])
def test_head_and_length_of_an_audit_log_belong_together(name: str, statement: dict[str, Any]) -> None:
    statement["hashes"] |= {"auditLogHead": "sha256:0", "auditLogLength": 3}
    parse_statement(statement)
    del statement["hashes"][name]
    with pytest.raises(StatementError, match=r"^hashes: auditLogHead and auditLogLength belong together"):
        parse_statement(statement)


@pytest.mark.parametrize("document", [[], "text", None, {}, {"schema": "tensafe.io/statement/v9"}])
def test_what_is_not_a_statement_of_this_release_is_refused(document: Any) -> None:
    with pytest.raises(StatementError, match=r"not a JSON object|it has the schema (None|tensafe.io/statement/v9)"):
        parse_statement(document)
