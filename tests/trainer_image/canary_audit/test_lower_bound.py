"""The statistics of an audit: equal to values computed in another way, valid in simulations, and monotone."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tensorguard.canary_audit.lower_bound import Guesses, GuessPlan, guess, noise_at_most

SIGNIFICANCE = 0.05


def exact_p_value(canaries: int, guesses: int, correct: int, odds: Fraction, delta: Fraction) -> Fraction:
    """The p-value in exact arithmetic, from the masses of the binomial distribution. `odds` is e^ε."""
    p = odds / (1 + odds)
    mass = [math.comb(guesses, k) * p**k * (1 - p) ** (guesses - k) for k in range(guesses + 1)]
    tail = sum(mass[correct:], Fraction(0))
    shares = [sum(mass[max(0, correct - i) : correct], Fraction(0)) / i for i in range(1, canaries + 1)]
    return min(Fraction(1), tail + 2 * canaries * delta * max(shares))


@settings(max_examples=60, deadline=None)
@given(
    canaries=st.integers(1, 40),
    guesses=st.integers(0, 40),
    correct=st.integers(0, 40),
    odds=st.fractions(1, 50, max_denominator=20),
    delta=st.sampled_from([Fraction(0), Fraction(1, 10**5), Fraction(1, 100)]),
)
def test_p_value_equals_the_theorem_in_exact_arithmetic(
    canaries: int, guesses: int, correct: int, odds: Fraction, delta: Fraction
) -> None:
    guesses = min(guesses, canaries)
    correct = min(correct, guesses)
    found = Guesses(canaries, guesses, correct).p_value(math.log(odds), float(delta))
    assert found == pytest.approx(float(exact_p_value(canaries, guesses, correct, odds, delta)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("guesses", "correct"), [(100, 90), (1000, 700), (400, 399)])
def test_without_delta_the_bound_is_that_of_clopper_and_pearson(guesses: int, correct: int) -> None:
    p = stats.beta.ppf(SIGNIFICANCE, correct, guesses - correct + 1)
    bound = Guesses(5000, guesses, correct).lower_bound(0.0, SIGNIFICANCE)
    assert bound == pytest.approx(math.log(p / (1 - p)), abs=1e-5)


def test_bound_of_guesses_that_are_all_correct_has_a_closed_form() -> None:
    p = SIGNIFICANCE ** (1 / 250)  # all of 250 guesses are correct with probability p^250
    assert Guesses(250, 250, 250).lower_bound(0.0, SIGNIFICANCE) == pytest.approx(math.log(p / (1 - p)), abs=1e-5)


def test_guesses_no_better_than_coins_refute_nothing() -> None:
    assert Guesses(1000, 400, 200).lower_bound(1e-5, SIGNIFICANCE) == 0.0
    assert Guesses(1000, 400, 10).lower_bound(1e-5, SIGNIFICANCE) == 0.0


counts = st.tuples(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 3000)).map(
    lambda three: (max(three[:2]), min(three[:2]), min(three[2], *three[:2]))
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(counts=counts, delta=st.sampled_from([0.0, 1e-6, 1e-5, 1e-3]))
def test_bound_grows_with_correct_guesses_and_falls_with_delta_canaries_and_confidence(
    counts: tuple[int, int, int], delta: float
) -> None:
    canaries, guesses, correct = counts
    bound = Guesses(canaries, guesses, correct).lower_bound(delta, SIGNIFICANCE)
    slack = 1e-5
    if correct < guesses:
        assert Guesses(canaries, guesses, correct + 1).lower_bound(delta, SIGNIFICANCE) >= bound - slack
    assert Guesses(canaries, guesses, correct).lower_bound(delta + 1e-4, SIGNIFICANCE) <= bound + slack
    assert Guesses(2 * canaries, guesses, correct).lower_bound(delta, SIGNIFICANCE) <= bound + slack
    assert Guesses(canaries, guesses, correct).lower_bound(delta, SIGNIFICANCE / 2) <= bound + slack


@settings(max_examples=60, deadline=None)
@given(counts=counts, delta=st.sampled_from([0.0, 1e-5, 1e-3]), epsilon=st.floats(0, 12))
def test_larger_epsilon_is_harder_to_refute(counts: tuple[int, int, int], delta: float, epsilon: float) -> None:
    guesses = Guesses(*counts)
    if (lower := guesses.p_value(epsilon, delta)) < 0.2:  # the bound is searched where p-values are this small
        assert guesses.p_value(epsilon + 0.1, delta) >= lower * (1 - 1e-9)


def share_of_wrong_bounds(correct: np.ndarray, canaries: int, guesses: int, epsilon: float, delta: float) -> float:
    """The share of runs whose bound exceeds the true ε."""
    bounds = {v: Guesses(canaries, guesses, int(v)).lower_bound(delta, SIGNIFICANCE) for v in set(correct.tolist())}
    return float(np.mean([bounds[v] > epsilon for v in correct.tolist()]))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_bound_of_randomised_response_is_wrong_as_often_as_it_may_be(epsilon: float) -> None:
    """It reveals each coin with probability e^ε/(1 + e^ε): the worst case, in which the bound is tight."""
    runs, canaries = 20_000, 1000
    correct = np.random.default_rng(0).binomial(canaries, 1 / (1 + math.exp(-epsilon)), size=runs)
    wrong = share_of_wrong_bounds(correct, canaries, canaries, epsilon, 0.0)
    assert 0.5 * SIGNIFICANCE < wrong <= SIGNIFICANCE + 4 * math.sqrt(SIGNIFICANCE / runs)


def test_bound_of_a_mechanism_that_sometimes_reveals_all_is_rarely_wrong() -> None:
    """Each coin is revealed outright with probability δ, else by randomised response: (ε, δ)-DP."""
    runs, canaries, epsilon, delta = 5000, 1000, 1.0, 0.01
    generator = np.random.default_rng(1)
    outright = generator.binomial(canaries, delta, size=runs)
    correct = outright + generator.binomial(canaries - outright, 1 / (1 + math.exp(-epsilon)))
    assert share_of_wrong_bounds(correct, canaries, canaries, epsilon, delta) <= SIGNIFICANCE
    without = share_of_wrong_bounds(correct, canaries, canaries, epsilon, 0.0)
    assert without > SIGNIFICANCE  # so the term with δ is needed


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The exact ε of one Gaussian step (Balle, Wang 2018), by a search over the closed form of δ(ε)."""
    epsilon = np.linspace(0, 20, 200_001)
    mean, spread = 1 / (2 * sigma), epsilon * sigma
    deltas = stats.norm.cdf(mean - spread) - np.exp(epsilon) * stats.norm.cdf(-mean - spread)
    return float(epsilon[np.argmax(deltas <= delta)])


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "k"), [(0.5, 500), (1.0, 300), (3.0, 50)])
def test_bound_of_a_gaussian_never_exceeds_its_exact_epsilon(sigma: float, k: int) -> None:
    generator, canaries, delta = np.random.default_rng(2), 5000, 1e-5
    exact = gaussian_epsilon(sigma, delta)
    for _ in range(200):
        included = generator.random(canaries) < 0.5
        found = guess(included + generator.normal(scale=sigma, size=canaries), included, GuessPlan(k, k))
        assert found.lower_bound(delta, SIGNIFICANCE) < exact


def test_guesses_are_the_highest_and_the_lowest_scores() -> None:
    scores = np.array([0.1, 5.0, -3.0, 4.0, -2.0, 0.0])
    included = np.array([True, True, False, False, True, False])
    assert guess(scores, included, GuessPlan(1, 1)) == Guesses(6, 2, 2)
    assert guess(scores, included, GuessPlan(2, 2)) == Guesses(6, 4, 2)
    assert guess(scores, included, GuessPlan(3, 0)) == Guesses(6, 3, 2)
    assert guess(scores, included, GuessPlan(0, 1)) == Guesses(6, 1, 1)


@pytest.mark.parametrize("plan", [GuessPlan(0, 0), GuessPlan(4, 3), GuessPlan(-1, 2), GuessPlan(7, 0)])
def test_impossible_numbers_of_guesses_are_refused(plan: GuessPlan) -> None:
    with pytest.raises(ValueError, match="guesses"):
        guess(np.zeros(6), np.zeros(6, dtype=bool), plan)


def test_more_correct_guesses_than_guesses_are_impossible() -> None:
    with pytest.raises(ValueError, match="impossible"):
        Guesses(10, 5, 6)


@pytest.mark.slow
def test_upper_bound_of_the_noise_is_wrong_as_often_as_it_may_be() -> None:
    generator, sigma, steps, significance = np.random.default_rng(3), 0.7, 9, 0.02
    runs = [noise_at_most(generator.normal(scale=sigma * 3, size=400), steps, significance) for _ in range(20_000)]
    wrong = float(np.mean(np.array(runs) < sigma))
    assert wrong == pytest.approx(significance, abs=4 * math.sqrt(significance / len(runs)))


def test_upper_bound_of_the_noise_is_near_it_and_only_grows_with_other_contributions() -> None:
    noise = np.random.default_rng(4).normal(scale=2.0, size=2500)
    bound = noise_at_most(noise, 4, 1e-6)
    assert 1.0 < bound < 1.1
    assert noise_at_most(noise + 3, 4, 1e-6) > bound
    assert noise_at_most(np.zeros(0), 4, 1e-6) == math.inf
