"""Computes every figure of a privacy statement again, with dp-accounting.

In: the statement of a checkpoint. Out: nothing, or the first part of it that does not follow from the rest. The parts
that no arithmetic can check (what ran, on which data) are the word of the signer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api import accounting
from tensafe_api.privacy_events import Mechanism, charged_events
from tensafe_api.statement import SCHEMA, STATEMENT_FILE, recompute_epsilon
from tensafe_api.statement_document import StatementError, check_counts, parse_statement
from tensorguard.verification.errors import NotVerified


def check_claim(document: Mapping[str, Any]) -> None:
    """Compare the figures of a statement with those that follow from its mechanism and its number of steps.

    Raises:
        NotVerified: names the part that differs.
    """
    if document.get("schema") != SCHEMA:
        raise NotVerified(STATEMENT_FILE, f"has the schema {document.get('schema')!r}; this version reads {SCHEMA}")
    try:
        parsed = parse_statement(document)
        _check(document)
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotVerified(STATEMENT_FILE, f"is no privacy statement that this version can read ({error})") from error
    try:
        check_counts(parsed)
    except StatementError as error:
        raise NotVerified(STATEMENT_FILE, f"contradicts itself: {error}") from error


def _check(document: Mapping[str, Any]) -> None:
    claim, spent, outsider = document["claim"], document["spent"], document["againstOutsider"]
    mechanism = Mechanism.model_validate(
        {name: document["mechanism"][name] for name in _names() if name in document["mechanism"]}, by_name=False
    )
    delta, accountant = claim["delta"], document["accounting"]["accountant"]
    charged = spent["stepsCharged"]
    events = [event.model_dump(by_alias=True) for event in charged_events(mechanism, charged)]
    _compare("events", document["events"], events)
    _compare("spent.epsilon", spent["epsilon"], recompute_epsilon(document))
    steps = accounting.claimed_steps(
        mechanism,
        planned=spent["stepsPlanned"],
        charged=charged,
        target_epsilon=float(claim["targetEpsilon"]),
        target_delta=delta,
        accountant=accountant,
    )
    _compare("claim.steps", claim["steps"], steps)
    claimed = accounting.format_epsilon(accounting.job_epsilon(mechanism, steps, delta, accountant))
    _compare("claim.epsilon", claim["epsilon"], claimed)
    _compare("againstOutsider.steps", outsider["steps"], steps)
    against = accounting.format_epsilon(accounting.outsider_epsilon(mechanism, steps, delta, accountant))
    _compare("againstOutsider.epsilon", outsider["epsilon"], against)
    _compare("claim.unit", claim["unit"], mechanism.unit)
    _compare("claim.adjacency", claim["adjacency"], mechanism.adjacency)


def _names() -> list[str]:
    return [field.alias or name for name, field in Mechanism.model_fields.items()]


def _compare(part: str, found: object, computed: object) -> None:
    if found != computed:
        raise NotVerified(STATEMENT_FILE, f"{part} is {found}, and the rest of the statement gives {computed}")
