"""The expected bound: of simulated audits, deterministic, and chosen so that an audit can refute where it can."""

from __future__ import annotations

import numpy as np
import pytest

from tensorguard.canary_audit.expectation import ClaimedSteps, choose_guesses, expect
from tensorguard.canary_audit.lower_bound import Guesses, GuessPlan, guess

ONE_STEP = ClaimedSteps(sample_rate=1.0, noise_multiplier=1.0, steps=1, delta=1e-5, epsilon=4.377)
SAMPLED = ClaimedSteps(sample_rate=0.04, noise_multiplier=1.5, steps=2250, delta=1e-5, epsilon=6.77)
LOW_NOISE = ClaimedSteps(sample_rate=1.0, noise_multiplier=0.3, steps=1, delta=1e-5, epsilon=18.8)


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [ONE_STEP, SAMPLED])
def test_expected_range_covers_what_independent_simulations_find(claimed: ClaimedSteps) -> None:
    k = choose_guesses(claimed, 5000, 0.05)
    expected = expect(claimed, 5000, k, 0.05)
    generator, bounds = np.random.default_rng(9), []
    for _ in range(100):
        included = generator.integers(2, size=5000).astype(bool)
        scores = np.where(included, generator.binomial(claimed.steps, claimed.sample_rate, 5000), 0.0)
        scores += generator.normal(scale=claimed.noise_multiplier * claimed.steps**0.5, size=5000)
        bounds.append(guess(scores, included, k).lower_bound(claimed.delta, 0.05))
    within = np.mean([expected.low <= bound <= expected.high for bound in bounds])
    assert within > 0.8
    assert expected.low < np.median(bounds) < expected.high
    assert expected.low <= expected.median <= expected.high <= expected.largest


@pytest.mark.slow
def test_number_of_guesses_leaves_room_to_refute_the_claim() -> None:
    k = choose_guesses(ONE_STEP, 5000, 0.05)
    assert expect(ONE_STEP, 5000, k, 0.05).largest >= 1.2 * ONE_STEP.epsilon
    assert Guesses(5000, k.total // 2, k.total // 2).lower_bound(1e-5, 0.05) < 1.2 * ONE_STEP.epsilon


@pytest.mark.slow
def test_low_scores_are_guessed_only_where_they_show_something() -> None:
    """At q = 1 both sides show as much. At a low q, canaries that are in have rarely joined, and score low."""
    few_joined = ClaimedSteps(sample_rate=0.064, noise_multiplier=0.64, steps=40, delta=2.5e-5, epsilon=7.7)
    for claimed, lowest in ((ONE_STEP, True), (few_joined, False)):
        plan = choose_guesses(claimed, 5000, 0.05)
        assert (plan.lowest > 0) is lowest
        other = GuessPlan(plan.highest, 0 if lowest else plan.highest)
        assert expect(claimed, 5000, plan, 0.05).median > expect(claimed, 5000, other, 0.05).median


def test_largest_bound_shows_that_guesses_cannot_refute_a_large_epsilon() -> None:
    k = choose_guesses(LOW_NOISE, 1000, 0.05)
    assert expect(LOW_NOISE, 1000, k, 0.05).largest < LOW_NOISE.epsilon


@pytest.mark.slow
def test_more_canaries_raise_the_largest_bound() -> None:
    largest = [expect(LOW_NOISE, m, choose_guesses(LOW_NOISE, m, 0.05), 0.05).largest for m in (100, 1000, 10_000)]
    assert largest == sorted(largest)


@pytest.mark.slow
def test_expectation_is_the_same_in_every_call() -> None:
    assert choose_guesses(SAMPLED, 1000, 0.05) == choose_guesses(SAMPLED, 1000, 0.05)
    assert expect(SAMPLED, 1000, GuessPlan(50, 50), 0.05) == expect(SAMPLED, 1000, GuessPlan(50, 50), 0.05)


@pytest.mark.parametrize("canaries", [2, 3, 7])
def test_few_canaries_have_an_expectation_too(canaries: int) -> None:
    k = choose_guesses(ONE_STEP, canaries, 0.05)
    assert 1 <= k.total <= canaries
    assert expect(ONE_STEP, canaries, k, 0.05).low == 0.0
