"""The form of a statement: what `build_statement` writes is read; anything else is refused by the name of a field."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tensafe_api.privacy_events import MAX_EARLIER_TRAININGS
from tensafe_api.statement_document import StatementDocument, StatementError, parse_statement


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


@pytest.mark.parametrize("document", [[], "text", None, {}, {"schema": "tensafe.io/statement/v9"}])
def test_what_is_not_a_statement_of_this_release_is_refused(document: Any) -> None:
    with pytest.raises(StatementError, match=r"not a JSON object|it has the schema (None|tensafe.io/statement/v9)"):
        parse_statement(document)
