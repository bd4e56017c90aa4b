"""The claim in one sentence, and the limits of attacks: never better than (ε, δ)."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensafe_api.statement.document import parse_statement
from tensorguard.statements.sentences import (
    FALSE_ALARMS,
    attack_limits,
    claim_sentence,
    factor_text,
    meaning_sentences,
    percent,
)

EPSILONS = st.decimals("0", "60", places=3).map(str)
DELTAS = st.sampled_from(["1e-300", "1e-9", "0.00001", "0.01", "0.3", "0.999"])


def test_claim_is_one_sentence_with_its_figures_and_its_steps(statement: dict[str, Any]) -> None:
    sentence = claim_sentence(parse_statement(statement))
    claim = statement["claim"]
    assert sentence.endswith(".") and ". " not in sentence
    for text in (f"ε = {claim['epsilon']}", f"δ = {claim['delta']}", f"{claim['steps']} steps", "claims-triage"):
        assert text in sentence
    assert ("40 earlier ones" in sentence) == ("startedFrom" in statement)
    assert ("each user" if claim["unit"] == "User" else "each record") in sentence
    assert ("nothing was in their place" in sentence) == (claim["adjacency"] == "ZeroOut")


def test_no_epsilon_leaves_an_attack_that_guesses() -> None:
    limits = attack_limits("0", "1e-300")
    assert percent(limits.accuracy) == "50.01"  # rounded up from just above 50
    assert float(limits.detected) == pytest.approx(0.01)


def test_limits_of_an_epsilon_of_log_3() -> None:
    """With e^ε = 3, the better of two answers is right in three of four cases."""
    limits = attack_limits(str(math.log(3)), "0")
    assert float(limits.accuracy) == pytest.approx(0.75)
    assert float(limits.detected) == pytest.approx(0.03)


@given(epsilon=EPSILONS, delta=DELTAS)
def test_limits_are_those_of_randomized_response(epsilon: str, delta: str) -> None:
    """The mechanism that is exactly (ε, δ)-private: it reveals the bit with probability δ, else randomizes it. The best
    test of it is right as often as the limit, and finds as many at each rate of false alarms.
    """
    factor, slack = math.exp(float(epsilon)), float(delta)
    reveals, agrees, disagrees = slack, (1 - slack) * factor / (1 + factor), (1 - slack) / (1 + factor)
    limits = attack_limits(epsilon, delta)
    assert float(limits.accuracy) == pytest.approx(reveals + agrees)
    alarms = float(FALSE_ALARMS)
    best = reveals + (agrees * min(alarms / disagrees, 1) + disagrees * min(max(alarms - disagrees, 0) / agrees, 1))
    assert float(limits.detected) == pytest.approx(best)


@given(epsilon=EPSILONS)
def test_factor_is_rounded_up_by_less_than_a_thousandth(epsilon: str) -> None:
    digits, _, power = factor_text(epsilon).replace(",", "").partition(" × 10^")
    shown, exact = Decimal(digits).scaleb(int(power or 0)), Decimal(epsilon).exp()
    assert exact <= shown <= exact * Decimal("1.0011")


@pytest.mark.parametrize(
    ("epsilon", "text"), [("7.33", "1,526"), ("0.5", "1.649"), ("0", "1"), ("20", "4.852 × 10^8"), ("1", "2.719")]
)
def test_factor_as_text(epsilon: str, text: str) -> None:
    assert factor_text(epsilon) == text


@pytest.mark.parametrize(
    ("epsilon", "tier"), [("1", "tier 1"), ("1.001", "tier 2"), ("10", "tier 2"), ("10.001", "tier 3")]
)
def test_tier_of_an_epsilon(epsilon: str, tier: str, make: Any) -> None:
    document = make()
    document["claim"]["epsilon"] = epsilon
    assert tier in meaning_sentences(parse_statement(document))[-1]


@pytest.mark.parametrize("epsilon", ["inf", "99999999999", "10001"])
def test_epsilon_without_meaning_promises_nothing(epsilon: str, make: Any) -> None:
    document = make()
    document["claim"]["epsilon"] = epsilon
    assert f"at most e^{epsilon}," in claim_sentence(parse_statement(document))
    assert "at most 100.00 %" in meaning_sentences(parse_statement(document))[0]
