"""PLD of the continuous Gaussian holds for sums of discrete shares: the bounds of decision 0038, with 60 digits.

The bounds are shown where they are visible, for a noise of a few grid steps. Jobs have a noise of a million.
"""

from __future__ import annotations

from collections.abc import Iterator

import mpmath
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld, rdp
from mpmath import mp, mpf

from tensafe_api.accounting.composition import MIN_NOISE, SIGMA_SHARE, AccountantName, epsilon, epsilon_of_events
from tensafe_api.accounting.loss_intervals import loss_interval
from tensafe_api.resources.mechanism import PrivacyEvent

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


@pytest.mark.slow
@pytest.mark.parametrize(("s", "r"), [("1.5", "0.4"), ("2", "0.5"), ("3", "0.6"), ("3", "0.75"), ("5", "1")])
def test_rounding_of_a_continuous_gaussian_is_a_discrete_one_up_to_the_factor(s: str, r: str) -> None:
    wide, narrow = mpf(s), mpf(r)
    exact = discrete_gaussian(wide)
    ratios = [rounded_gaussian(z, wide, narrow) / exact[z] for z in range(5)]
    most = (1 + eta(wide)) / (1 - eta(narrow))
    least = (1 - eta(wide)) / (1 + eta(narrow))
    assert all(least <= ratio <= most for ratio in ratios)


@pytest.mark.parametrize("r", ["0.3", "0.5", "1", "4"])
def test_sum_over_a_shifted_grid_is_its_integral_up_to_eta(r: str) -> None:
    """For each shift; at a shift of 0 the error is exactly η."""
    width = mpf(r)
    errors = []
    for eighths in range(8):
        points = (mp.exp(-((k - mpf(eighths) / 8) ** 2) / (2 * width**2)) for k in range(-80, 82))
        errors.append(mp.fsum(points) / (mp.sqrt(2 * mp.pi) * width) - 1)
    with mp.workdps(200):
        most = eta(width)
    assert max(map(abs, errors)) <= most * (1 + mpf(10) ** -20) + mpf(10) ** -55
    assert abs(errors[0] - most) <= most * mpf(10) ** -10 + mpf(10) ** -55


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
    furthest = max(abs(ratio - 1) for ratio in ratios)
    if shares == 2:
        assert furthest > (bound - 1) / 4, "the bound is far from what happens"
    else:
        last = eta(mpf(s) * mp.sqrt(mpf(shares - 1) / shares))
        assert furthest > (1 + last) / (1 - last) - 1, "the factor of the last share alone is no bound"
    assert bound <= mp.exp(4 * shares * eta(mpf(s) / mp.sqrt(2)))


def test_share_of_sigma_pays_for_the_width_of_rounding() -> None:
    """With r = 4, in every dimension that the trainer's integers allow, with 256 shares and 2^31 steps."""
    assert mp.sqrt(1 - (mpf(4) / MIN_NOISE) ** 2) >= 1 - mpf(SIGMA_SHARE)
    dimension, share = 4 * 10**12, mpf(MIN_NOISE) / 16
    with mp.workdps(200):
        exponent = 2**31 * dimension * (2 * eta(mpf(4)) + 4 * 256 * eta(share / mp.sqrt(2)))
    assert exponent < mpf(10) ** -100


@pytest.mark.parametrize("accountant", ["RDP", "PLD"])
def test_every_epsilon_leaves_the_share_of_sigma_out(accountant: AccountantName) -> None:
    """For steps and for events alike; the difference is visible where ε is not rounded."""

    def of_library(sigma: float) -> float:
        pld_accountant = pld.PLDAccountant(value_discretization_interval=loss_interval([(0.05, 1.2)]))
        composed = pld_accountant if accountant == "PLD" else rdp.RdpAccountant()
        composed.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(sigma)), 100))
        return float(composed.get_epsilon(1e-5 - (1e-11 + 100e-15 if accountant == "PLD" else 0.0)))

    events = [PrivacyEvent(sample_rate="0.05", noise_multiplier="1.2", steps=100)]
    found = epsilon(sample_rate=0.05, noise_multiplier=1.2, steps=100, delta=1e-5, accountant=accountant)
    assert found == pytest.approx(of_library(1.2 * (1 - SIGMA_SHARE)), rel=1e-9)
    assert epsilon_of_events(events, 1e-5, accountant) == pytest.approx(found, rel=1e-9)
    assert found > of_library(1.2) * (1 + SIGMA_SHARE / 2)
