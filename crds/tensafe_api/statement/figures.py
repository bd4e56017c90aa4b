"""Computes every figure of a privacy statement again, with dp-accounting, and compares the words that define them.

In: a statement as it was read, and the same with types. Out: nothing, or the first part of the claim that does not
follow from the rest. What cannot be computed (what ran, on which data) is the word of the publisher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api.accounting import composition
from tensafe_api.resources.mechanism import charged_events
from tensafe_api.statement.contents import (
    ADJACENCY_DEFINITIONS,
    RELEASED,
    SAMPLERS_UNPAID,
    SHARE_OF_DELTA,
    SHARE_OF_SIGMA,
    UNIT_DEFINITIONS,
    covered_text,
    recompute_epsilon,
)
from tensafe_api.statement.document import StatementDocument, StatementError, check_counts

_ROUNDING = 0.01
"""The statement rounds ε and the distance, which a job compares before it does."""


def check_figures(raw: Mapping[str, Any], document: StatementDocument) -> None:
    """Compare the claim of a statement with the one that follows from its mechanism and its numbers of steps.

    Args:
        raw: the statement as it was read from JSON.
        document: the same after `parse_statement`.

    Raises:
        StatementError: names the part that differs, or why ε cannot be computed.
    """
    mechanism, claim = document.mechanism, document.claim
    charged, delta, accountant = document.spent.steps_charged, claim.delta, document.accounting.accountant
    _compare("events", raw["events"], [event.model_dump(by_alias=True) for event in charged_events(mechanism, charged)])
    check_counts(document)
    try:
        _compare("spent.epsilon", document.spent.epsilon, recompute_epsilon(raw))
        steps = composition.claimed_steps(
            mechanism,
            planned=document.spent.steps_planned,
            charged=charged,
            target_epsilon=float(claim.target_epsilon),
            target_delta=delta,
            accountant=accountant,
        )
        _compare("claim.steps", claim.steps, steps)
        claimed = composition.job_epsilon(mechanism, steps, delta, accountant)
        _compare("claim.epsilon", claim.epsilon, composition.format_epsilon(claimed))
        _check_samplers(document)
    except StatementError:
        raise
    except (ArithmeticError, ValueError) as error:
        raise StatementError(f"its ε cannot be computed: {error}") from error
    _compare("claim.unit", claim.unit, mechanism.unit)
    if claim.unit_definition not in UNIT_DEFINITIONS[mechanism.unit]:
        _compare("claim.unitDefinition", claim.unit_definition, UNIT_DEFINITIONS[mechanism.unit][0])
    _compare("claim.adjacency", claim.adjacency, mechanism.adjacency)
    _compare("claim.adjacencyDefinition", claim.adjacency_definition, ADJACENCY_DEFINITIONS[mechanism.adjacency])
    _compare("claim.covers", claim.covers, covered_text(mechanism, steps))
    _compare("claim.released", claim.released, RELEASED)


def _check_samplers(document: StatementDocument) -> None:
    """Check that the share of δ for the noise samplers pays for their distance, with that of the earlier trainings.

    A job has checked it at no less draws and no smaller ε, at most its target. With a target above
    `LARGEST_PAID_EPSILON` it may have started all the same, and its statement has a remark.
    """
    mechanism, claim, shares = document.mechanism, document.claim, document.accounting
    _compare("accounting.shareOfSigmaForDiscreteNoise", shares.share_of_sigma_for_discrete_noise, SHARE_OF_SIGMA)
    _compare("accounting.shareOfDeltaForNoiseSampler", shares.share_of_delta_for_noise_sampler, SHARE_OF_DELTA)
    has_remark = any(SAMPLERS_UNPAID in remark for remark in document.remarks)
    if has_remark and float(claim.target_epsilon) > composition.LARGEST_PAID_EPSILON:
        return
    draws = mechanism.dimension * mechanism.workers * max(claim.steps, document.spent.steps_charged)
    before = float(document.started_from.noise_distance) if document.started_from else 0.0
    distance = draws * float(mechanism.noise_distance_per_draw) + before
    cost = composition.log_cost_of_samplers(distance, float(claim.epsilon))
    if not cost <= composition.log_share_of_samplers(claim.delta) + _ROUNDING:
        raise StatementError(
            f"mechanism.noiseDistancePerDraw is {mechanism.noise_distance_per_draw}, and δ does not pay for {draws} "
            "such draws of noise"
        )


def _compare(part: str, found: object, computed: object) -> None:
    if found != computed:
        raise StatementError(f"{part} is {found}, and the rest of the statement gives {computed}")
