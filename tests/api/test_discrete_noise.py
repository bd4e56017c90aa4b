"""PLD of the continuous Gaussian holds for sums of discrete shares: the bounds of decision 0038, with 60 digits.

The bounds are shown where they are visible, for a noise of a few grid steps. Jobs have a noise of a million.
"""

from __future__ import annotations

from collections.abc import Iterator

import mpmath
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld
from mpmath import mp, mpf

from tensafe_api.accounting import PLD_SIGMA_SHARE, epsilon, epsilon_of_events
from tensafe_api.privacy_events import PrivacyEvent
from tensafe_api.resolve import MIN_GRID_BITS, MIN_PLD_SIGMA

REACH = 14  # standard deviations: what is beyond is below 10^-42


@pytest.fixture(autouse=True)
def sixty_digits() -> Iterator[None]:
    with mp.workdps(60):
        yield


def eta(r: mpf) -> mpf:
    """The relative error of replacing a sum of e^(-x²/2r²) over a shifted grid by its integral."""
    return 2 * mpmath.nsum(lambda i: mp.exp(-2 * mp.pi**2 * r**2 * i**2), [1, mp.inf])


def discrete_gaussian(s: mpf) -> dict[int, mpf]:
    """Probabilities of N_Z(0, s²)."""
    reach = int(REACH * s)
    weights = {z: mp.exp(-(mpf(z) ** 2) / (2 * s**2)) for z in range(-reach, reach + 1)}
    total = mp.fsum(weights.values())
    return {z: weight / total for z, weight in weights.items()}


def rounded_gaussian(z: int, s: mpf, r: mpf) -> mpf:
    """The probability that the randomised rounding of N(0, s² - r²) with the width r is z."""
    variance = s**2 - r**2

    def density(y: mpf) -> mpf:
        near = mp.fsum(mp.exp(-((k - y) ** 2) / (2 * r**2)) for k in range(int(y - REACH * r), int(y + REACH * r) + 2))
        return mp.exp(-(y**2) / (2 * variance) - (z - y) ** 2 / (2 * r**2)) / near

    # The integrand is smooth and vanishes at both ends, so the trapezoidal rule converges exponentially.
    centre, width = z * variance / s**2, r * mp.sqrt(variance) / s
    step = width / 8
    count = int(REACH * width / step)
    total = mp.fsum(density(centre + i * step) for i in range(-count, count + 1)) * step
    return total / mp.sqrt(2 * mp.pi * variance)


@pytest.mark.parametrize(("s", "r"), [("1.5", "0.4"), ("2", "0.5"), ("3", "0.6"), ("3", "0.75"), ("5", "1")])
def test_rounding_of_a_continuous_gaussian_is_a_discrete_one_up_to_the_factor(s: str, r: str) -> None:
    wide, narrow = mpf(s), mpf(r)
    exact = discrete_gaussian(wide)
    ratios = [rounded_gaussian(z, wide, narrow) / exact[z] for z in range(5)]
    most = (1 + eta(wide)) / (1 - eta(narrow))
    least = (1 - eta(wide)) / (1 + eta(narrow))
    assert all(least <= ratio <= most for ratio in ratios)


@pytest.mark.parametrize("s", ["0.6", "0.8", "1", "1.5"])
@pytest.mark.parametrize("shares", [2, 3, 8])
def test_sum_of_shares_is_a_discrete_gaussian_up_to_the_factor(s: str, shares: int) -> None:
    share = discrete_gaussian(mpf(s))
    total = dict(share)
    for _ in range(shares - 1):
        reach = int(REACH * mpf(s) * mp.sqrt(shares))
        total = {
            z: mp.fsum(total.get(z - k, 0) * weight for k, weight in share.items()) for z in range(-reach, reach + 1)
        }
    exact = discrete_gaussian(mpf(s) * mp.sqrt(shares))
    bound = mpf(1)
    for k in range(1, shares):
        error = eta(mpf(s) * mp.sqrt(mpf(k) / (k + 1)))
        bound *= (1 + error) / (1 - error)
    ratios = [total[z] / exact[z] for z in range(5)]
    assert all(1 / bound <= ratio <= bound for ratio in ratios)
    if shares == 2:
        assert max(abs(ratio - 1) for ratio in ratios) > (bound - 1) / 4, "the bound is far from what happens"


def test_share_of_sigma_pays_for_the_width_of_rounding_on_every_grid_of_pld() -> None:
    """With r = 4 the factor of a run of 10^6 steps in 10^9 coordinates is 1 up to 10^-100."""
    least = mpf(MIN_PLD_SIGMA) * 2**MIN_GRID_BITS
    assert mp.sqrt(1 - (4 / least) ** 2) >= 1 - mpf(PLD_SIGMA_SHARE)
    assert 10**15 * 4 * eta(mpf(4)) < mpf(10) ** -100


def test_pld_leaves_the_share_of_sigma_out() -> None:
    """For steps and for events alike; the difference is visible where ε is not rounded."""

    def of_library(sigma: float) -> float:
        accountant = pld.PLDAccountant()
        accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(sigma)), 100))
        return float(accountant.get_epsilon(1e-5 - 1e-11))

    events = [PrivacyEvent(sample_rate="0.05", noise_multiplier="1.2", steps=100)]
    found = epsilon(sample_rate=0.05, noise_multiplier=1.2, steps=100, delta=1e-5, accountant="PLD")
    assert found == pytest.approx(of_library(1.2 * (1 - PLD_SIGMA_SHARE)), rel=1e-9)
    assert epsilon_of_events(events, 1e-5, "PLD") == pytest.approx(found, rel=1e-9)
    assert found > of_library(1.2) * (1 + PLD_SIGMA_SHARE / 2)
