"""Computes every figure of a privacy statement again, with dp-accounting.

In: a statement as it was read, and the same with types. Out: nothing, or the first figure that does not follow from the
rest. The parts that no arithmetic can check (what ran, on which data) are the word of the publisher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api import accounting
from tensafe_api.privacy_events import charged_events
from tensafe_api.statement import recompute_epsilon
from tensafe_api.statement_document import StatementDocument, StatementError, check_counts


def check_figures(raw: Mapping[str, Any], document: StatementDocument) -> None:
    """Compare the figures of a statement with those that follow from its mechanism and its numbers of steps.

    Args:
        raw: the statement as it was read from JSON.
        document: the same after `parse_statement`.

    Raises:
        StatementError: names the figure that differs, or why it cannot be computed.
    """
    mechanism, claim, outsider = document.mechanism, document.claim, document.against_outsider
    charged, delta, accountant = document.spent.steps_charged, claim.delta, document.accounting.accountant
    _compare("events", raw["events"], [event.model_dump(by_alias=True) for event in charged_events(mechanism, charged)])
    check_counts(document)
    try:
        _compare("spent.epsilon", document.spent.epsilon, recompute_epsilon(raw))
        steps = accounting.claimed_steps(
            mechanism,
            planned=document.spent.steps_planned,
            charged=charged,
            target_epsilon=float(claim.target_epsilon),
            target_delta=delta,
            accountant=accountant,
        )
        _compare("claim.steps", claim.steps, steps)
        claimed = accounting.job_epsilon(mechanism, steps, delta, accountant)
        _compare("claim.epsilon", claim.epsilon, accounting.format_epsilon(claimed))
        _compare("againstOutsider.steps", outsider.steps, steps)
        against = accounting.outsider_epsilon(mechanism, steps, delta, accountant)
        _compare("againstOutsider.epsilon", outsider.epsilon, accounting.format_epsilon(against))
    except StatementError:
        raise
    except (ArithmeticError, ValueError) as error:
        raise StatementError(f"its ε cannot be computed: {error}") from error
    _compare("claim.unit", claim.unit, mechanism.unit)
    _compare("claim.adjacency", claim.adjacency, mechanism.adjacency)


def _compare(part: str, found: object, computed: object) -> None:
    if found != computed:
        raise StatementError(f"{part} is {found}, and the rest of the statement gives {computed}")
