"""ε and σ: reference values, comparison with other libraries, and the direction of each rounding."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from opacus.accountants import RDPAccountant as OpacusRDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from tensafe_api.accounting.calibration import MIN_CALIBRATED_SIGMA, CalibrationError, calibrate
from tensafe_api.accounting.composition import (
    MIN_PLD_DELTA,
    AccountantName,
    epsilon,
    epsilon_of_events,
    format_epsilon,
    job_delta,
    job_epsilon,
    steps_within,
)
from tensafe_api.resources.mechanism import Mechanism, PrivacyEvent

RDP_VALUES = [
    # σ, q, steps, δ, ε
    (1.5, 0.04, 2250, 1e-5, 7.32934),
    (1.3, 0.0025, 6000, 1e-5, 0.72422),
    (1.0, 1e-3, 30_000, 1e-7, 1.41550),
]
PLD_VALUES = [(0.8, 0.001, 1000, 1e-6, 0.46770), (1.5, 0.05, 1000, 1e-6, 6.19970)]
MECHANISM = Mechanism(
    sample_rate="0.04",
    noise_multiplier="1.5",
    clip="1.0",
    unit="Example",
    workers=4,
    grid_bits=20,
    expected_batch_size=200,
)


@pytest.mark.parametrize(("sigma", "q", "steps", "delta", "expected"), RDP_VALUES)
def test_reference_values_of_rdp(sigma: float, q: float, steps: int, delta: float, expected: float) -> None:
    assert epsilon(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=delta) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "q", "steps", "delta", "expected"), PLD_VALUES)
def test_reference_values_of_pld(sigma: float, q: float, steps: int, delta: float, expected: float) -> None:
    value = epsilon(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=delta, accountant="PLD")
    assert value == pytest.approx(expected, abs=1e-3)
    assert value < epsilon(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=delta)


@pytest.mark.parametrize(("sigma", "q", "steps", "delta", "expected"), RDP_VALUES)
def test_opacus_agrees_on_rdp(sigma: float, q: float, steps: int, delta: float, expected: float) -> None:
    ours = epsilon(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=delta)
    opacus = OpacusRDPAccountant()
    opacus.history = [(sigma, q, steps)]
    assert opacus.get_epsilon(delta) == pytest.approx(ours, abs=1e-3)
    assert opacus.get_epsilon(delta) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "q", "steps", "delta", "prv"), [(0.8, 0.001, 1000, 1e-6, 0.47777), (1.5, 0.05, 1000, 1e-6, 6.20997)]
)
def test_opacus_prv_is_near_and_looser(sigma: float, q: float, steps: int, delta: float, prv: float) -> None:
    opacus = PRVAccountant()
    opacus.history = [(sigma, q, steps)]
    theirs = opacus.get_epsilon(delta)
    assert theirs == pytest.approx(prv, abs=1e-3)
    assert (
        0 < theirs - epsilon(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=delta, accountant="PLD") < 0.011
    )


def test_epsilon_matches_recorded_values() -> None:
    def at(steps: int, sigma: float = 0.762861) -> float:
        return epsilon(sample_rate=0.0128, noise_multiplier=sigma, steps=steps, delta=1e-6)

    assert at(2000) == pytest.approx(8.0, abs=1e-3)
    assert at(620) == pytest.approx(5.153, abs=1e-3)
    assert at(2000, 0.76) == pytest.approx(8.08, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["RDP", "PLD"])
def test_scaled_curve_equals_composed_events(accountant: AccountantName) -> None:
    events = [PrivacyEvent(sample_rate="0.04", noise_multiplier="1.5", steps=steps) for steps in (100, 0, 50)]
    direct = epsilon(sample_rate=0.04, noise_multiplier=1.5, steps=150, delta=1e-5, accountant=accountant)
    plain: dp_accounting.PrivacyAccountant = rdp.RdpAccountant() if accountant == "RDP" else pld.PLDAccountant()
    sigma = 1.5 * (1 - 1e-6)  # the share pays for discrete noise
    plain.compose(dp_accounting.PoissonSampledDpEvent(0.04, dp_accounting.GaussianDpEvent(sigma)), 150)
    assert direct == pytest.approx(plain.get_epsilon(1e-5), rel=1e-9 if accountant == "RDP" else 1e-4)
    assert epsilon_of_events(events, 1e-5, accountant) == pytest.approx(direct, rel=1e-3)
    one = PrivacyEvent(sample_rate="0.04", noise_multiplier="1.5", steps=150)
    assert epsilon_of_events([one], 1e-5, accountant) == pytest.approx(direct, rel=1e-9)
    if accountant == "RDP":
        assert epsilon_of_events([one], 1e-5) == direct


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["RDP", "PLD"])
def test_composition_of_different_mechanisms_exceeds_each(accountant: AccountantName) -> None:
    one = PrivacyEvent(sample_rate="0.04", noise_multiplier="1.5", steps=100)
    other = PrivacyEvent(sample_rate="0.01", noise_multiplier="0.9", steps=40)
    both = epsilon_of_events([one, other], 1e-5, accountant)
    assert both > max(epsilon_of_events([event], 1e-5, accountant) for event in (one, other))


def test_zero_steps_spend_nothing() -> None:
    assert epsilon(sample_rate=0.1, noise_multiplier=1.0, steps=0, delta=1e-5) == 0.0
    assert epsilon_of_events([], 1e-5) == 0.0
    assert epsilon_of_events([PrivacyEvent(sample_rate="0.1", noise_multiplier="1", steps=0)], 1e-5) == 0.0


rates = st.sampled_from([1.0, 0.3, 0.04, 0.0128, 1e-3])
sigmas = st.floats(0.4, 8.0)
deltas = st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3])


@pytest.mark.slow
@settings(max_examples=25)
@given(rates, sigmas, st.integers(1, 20_000), deltas, st.integers(1, 5000), st.floats(1.001, 2.0))
def test_epsilon_grows_with_steps_and_sampling_and_falls_with_noise_and_delta(
    q: float, sigma: float, steps: int, delta: float, more: int, factor: float
) -> None:
    def at(**changes: float) -> float:
        arguments = {"sample_rate": q, "noise_multiplier": sigma, "steps": steps, "delta": delta, **changes}
        return epsilon(**arguments)  # type: ignore[arg-type]

    # The tolerance of 1e-12 covers the last digits of the floats.
    least = at() * (1 - 1e-12)
    assert at(steps=steps + more) >= least
    assert at(noise_multiplier=sigma / factor) >= least
    assert at(delta=delta / factor) >= least
    assert at(sample_rate=min(1.0, q * factor)) >= least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "q", "steps", "delta"), [(8.0, 0.0128, 2200, 1e-6), (1.0, 0.05, 300, 1e-5), (0.1, 0.001, 50, 1e-7)]
)
def test_calibrated_sigma_is_the_smallest_string_within_the_target(
    target: float, q: float, steps: int, delta: float
) -> None:
    sigma = calibrate(target_epsilon=target, sample_rate=q, steps=steps, delta=delta)
    assert len(sigma.partition(".")[2]) <= 6

    def at(noise: float) -> float:
        return epsilon(sample_rate=q, noise_multiplier=noise, steps=steps, delta=delta)

    assert at(float(sigma)) <= target < at(float(sigma) - 1e-6)


@pytest.mark.parametrize(("steps", "sigma"), [(50_000, 30.0), (10_000, 33.6)])
def test_pld_is_never_below_the_closed_form_of_full_batches(steps: int, sigma: float) -> None:
    """Balle and Wang 2018: T steps over all records equal one Gaussian with mu = sqrt(T)/sigma."""
    mu = math.sqrt(steps) / sigma
    delta = MIN_PLD_DELTA

    def spent(eps: float) -> float:
        return norm.cdf(-eps / mu + mu / 2) - math.exp(eps + norm.logcdf(-eps / mu - mu / 2))

    exact = brentq(lambda eps: spent(eps) - delta, 0.01, 500)
    found = epsilon(sample_rate=1.0, noise_multiplier=sigma, steps=steps, delta=delta, accountant="PLD")
    assert exact <= found <= exact * 1.01


@pytest.mark.slow
def test_pld_pays_for_the_rounding_of_many_steps() -> None:
    """The exact ε, by a contour integral in long double, is 10.10234. With 1e-11 less of δ, PLD gave 10.10104."""
    figures = {"sample_rate": 6.4353e-06, "noise_multiplier": 0.323689, "steps": 200_000}
    assert 10.10234 < epsilon(**figures, delta=job_delta("1e-8"), accountant="PLD") < 10.13  # type: ignore[arg-type]


def test_pld_gives_infinity_where_its_rounding_is_not_negligible() -> None:
    figures = {"sample_rate": 0.5, "noise_multiplier": 50.0, "steps": 1000}
    assert epsilon(**figures, delta=9e-9, accountant="PLD") == math.inf
    assert epsilon_of_events([PrivacyEvent(sample_rate="0.5", noise_multiplier="50", steps=9)], 9e-9, "PLD") == math.inf


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("sigma", [1e-152, pytest.param(1e-155, marks=pytest.mark.slow), 1e-160])
def test_sigma_for_which_rdp_is_not_a_number_gives_infinity(sigma: float) -> None:
    assert epsilon(sample_rate=0.1, noise_multiplier=sigma, steps=1, delta=1e-5) > 1e3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "q", "steps", "delta", "most"), [(2.0, 0.05, 200, 1e-5, 1.0), (0.05, 0.001, 1, 1e-4, 0.2)]
)
def test_calibration_by_pld_meets_its_target_with_less_noise(
    target: float, q: float, steps: int, delta: float, most: float
) -> None:
    """Where few steps draw few records, RDP is so loose that PLD needs less than a fifth of its noise."""
    arguments = {"target_epsilon": target, "sample_rate": q, "steps": steps, "delta": delta}
    by_pld = calibrate(**arguments, accountant="PLD")  # type: ignore[arg-type]
    spent = epsilon(sample_rate=q, noise_multiplier=float(by_pld), steps=steps, delta=delta, accountant="PLD")
    assert 0.999 * target < spent <= target
    assert float(by_pld) < most * float(calibrate(**arguments))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("target", [1e-310, 1e-300, 1e-20])
def test_calibration_to_a_tiny_target_finds_the_smallest_sigma(target: float) -> None:
    """RDP of one step of few records is exactly 0 from some σ on, so even such a target can be met."""
    sigma = float(calibrate(target_epsilon=target, sample_rate=0.1, steps=1, delta=0.1))
    values = [epsilon(sample_rate=0.1, noise_multiplier=each, steps=1, delta=0.1) for each in (sigma, sigma - 1e-6)]
    assert values[0] <= target < values[1]


def test_calibration_never_returns_less_than_the_minimum_sigma() -> None:
    assert float(calibrate(target_epsilon=1e9, sample_rate=0.01, steps=10, delta=1e-5)) == MIN_CALIBRATED_SIGMA


def test_unreachable_target_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="no noise multiplier reaches ε 1e-09 over 1000 steps"):
        calibrate(target_epsilon=1e-9, sample_rate=1.0, steps=1000, delta=1e-9)


@pytest.mark.parametrize(("sigma", "q"), [(1e8, 0.04), (1e6, 1e-3)])
def test_cancellation_never_makes_epsilon_zero(sigma: float, q: float) -> None:
    """The RDP curve of dp-accounting has negative orders here. It returns ε = 0 for them, which would be too small."""
    plain = rdp.RdpAccountant()
    plain.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), 1000)
    assert plain.get_epsilon(1e-9) == 0
    event = PrivacyEvent(sample_rate=str(q), noise_multiplier=str(sigma), steps=1000)
    assert 0 < epsilon(sample_rate=q, noise_multiplier=sigma, steps=1000, delta=1e-9) < 0.02
    assert 0 < epsilon_of_events([event], 1e-9) < 0.02


@pytest.mark.slow
@settings(max_examples=25)
@given(rates, sigmas, st.floats(0.01, 20.0), st.integers(0, 3000))
def test_steps_within_returns_the_largest_number_that_fits(q: float, sigma: float, target: float, at_most: int) -> None:
    arguments = {"sample_rate": q, "noise_multiplier": sigma, "delta": 1e-6}
    steps = steps_within(target_epsilon=target, at_most=at_most, **arguments)  # type: ignore[arg-type]
    assert 0 <= steps <= at_most
    assert epsilon(steps=steps, **arguments) <= target  # type: ignore[arg-type]
    if steps < at_most:
        assert epsilon(steps=steps + 1, **arguments) > target  # type: ignore[arg-type]


def test_delta_of_a_job_leaves_a_share_for_the_noise_sampler() -> None:
    assert job_delta("0.00001") == pytest.approx(1e-5 * (1 - 1e-6), rel=1e-12)
    assert job_delta("0.00001") < 1e-5
    exact = epsilon(sample_rate=0.04, noise_multiplier=1.5, steps=2250, delta=1e-5)
    assert exact < job_epsilon(MECHANISM, 2250, "0.00001", "RDP") < exact + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accountant", "library"), [("RDP", rdp.RdpAccountant), ("PLD", pld.PLDAccountant)], ids=["RDP", "PLD"]
)
def test_epsilon_holds_under_zero_out_adjacency_too(accountant: AccountantName, library: type) -> None:
    """dp-accounting knows this adjacency as REPLACE_SPECIAL: a record is replaced by a special one."""
    composed = library(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    composed.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.5)), 100)
    ours = epsilon(sample_rate=0.05, noise_multiplier=1.5, steps=100, delta=1e-5, accountant=accountant)
    assert composed.get_epsilon(1e-5) <= ours <= composed.get_epsilon(1e-5) * (1 + 1e-4)


def test_epsilon_is_shown_rounded_up() -> None:
    assert format_epsilon(4.9281) == "4.929"
    assert format_epsilon(0.1) == "0.101"  # the float is just above 0.1
    assert format_epsilon(8.0) == "8"
    assert format_epsilon(0.0) == "0"
    assert format_epsilon(math.inf) == "inf"
    assert format_epsilon(1e30) == "1000000000000000019884624838656"
