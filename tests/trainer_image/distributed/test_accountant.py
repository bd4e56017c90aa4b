"""The accountant of the Python API: reference values, composition of different steps, a comparison with Opacus."""

from __future__ import annotations

import math
import warnings

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import RDPAccountant

from tensafe_api.accounting import composition
from tensorguard.distributed import ConfigurationError, DistributedRDPAccountant


def of(noise: float, rate: float, steps: int, delta: float) -> float:
    accountant = DistributedRDPAccountant(target_epsilon=8.0, target_delta=delta)
    accountant.step(noise_multiplier=noise, sample_rate=rate, steps=steps)
    epsilon, at = accountant.get_epsilon()
    assert at == delta
    return epsilon


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "epsilon"),
    [
        (1.5, 0.04, 2250, 1e-5, 7.32934),
        (1.3, 0.0025, 6000, 1e-5, 0.72422),
        (1.0, 1e-3, 30000, 1e-7, 1.41550),
    ],
)
def test_epsilon_equals_the_reference_values(
    noise: float, rate: float, steps: int, delta: float, epsilon: float
) -> None:
    assert of(noise, rate, steps, delta) == pytest.approx(epsilon, abs=1e-3)


@pytest.mark.slow
def test_different_steps_add_up_at_each_renyi_order() -> None:
    kinds = [(1.0, 0.01, 300), (1.5, 0.04, 200), (0.8, 0.002, 1000)]
    accountant = DistributedRDPAccountant(8.0, 1e-5)
    by_hand, opacus = RdpAccountant(), RDPAccountant()
    for noise, rate, steps in kinds:
        for part in (steps // 2, steps - steps // 2):
            accountant.step(noise_multiplier=noise, sample_rate=rate, steps=part)
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        by_hand.compose(event, steps)
        opacus.history.append((noise, rate, steps))
    epsilon, _ = accountant.get_epsilon()
    assert epsilon == pytest.approx(by_hand.get_epsilon(1e-5), rel=1e-4) and epsilon >= by_hand.get_epsilon(1e-5)
    assert epsilon == pytest.approx(opacus.get_epsilon(1e-5), abs=2e-3)
    alone = [of(noise, rate, steps, 1e-5) for noise, rate, steps in kinds]
    assert math.sqrt(sum(value**2 for value in alone)) != pytest.approx(epsilon, rel=0.02)


@pytest.mark.parametrize(("noise", "rate"), [(1.5, 0.04), (1e6, 1e-3), (1e8, 0.04)])
def test_epsilon_equals_that_of_a_jobs_status(noise: float, rate: float) -> None:
    """In the last two cases dp-accounting's curve has negative orders, for which it returns ε = 0."""
    mechanism = {"sample_rate": rate, "noise_multiplier": noise, "steps": 1000}
    assert of(noise, rate, 1000, 1e-9) == composition.epsilon(**mechanism, delta=composition.job_delta("1e-09")) > 0


def test_remaining_steps_use_the_same_accountant() -> None:
    mechanism = {"noise_multiplier": 1e6, "sample_rate": 1e-3}
    delta = composition.job_delta("1e-09")
    fits = composition.steps_within(target_epsilon=0.012, **mechanism, delta=delta, at_most=1_000_000)
    found = DistributedRDPAccountant(0.012, 1e-9).remaining_steps(**mechanism)
    assert found == fits < 1_000_000


def test_epsilon_at_another_delta_and_after_further_steps() -> None:
    accountant = DistributedRDPAccountant(8.0, 1e-5)
    for _ in range(3):
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
        accountant.get_epsilon()
    assert accountant.get_epsilon()[0] == pytest.approx(of(1.0, 0.01, 3, 1e-5), rel=1e-9)
    assert accountant.get_epsilon(1e-7)[0] > accountant.get_epsilon()[0]
    assert accountant.get_epsilon(target_delta=1e-7)[1] == 1e-7


def test_epsilon_before_the_first_step_is_zero_with_a_warning() -> None:
    accountant = DistributedRDPAccountant(target_epsilon=8.0, target_delta=1e-5)
    with pytest.warns(UserWarning, match="no step was counted so far, so ε is 0: call step"):
        assert accountant.get_epsilon(target_delta=1e-5) == (0.0, 1e-5)
    accountant.step(noise_multiplier=1.0, sample_rate=0.01, steps=0)
    with pytest.warns(UserWarning, match="no step was counted so far"):
        assert accountant.get_epsilon()[0] == 0.0
    with warnings.catch_warnings(action="error"):
        assert accountant.remaining_epsilon == 8.0
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
        assert accountant.get_epsilon()[0] > 0


def test_remaining_steps_keep_the_target() -> None:
    accountant = DistributedRDPAccountant(2.0, 1e-5)
    accountant.step(noise_multiplier=1.0, sample_rate=0.01, steps=100)
    spent, _ = accountant.get_epsilon()
    assert accountant.remaining_epsilon == pytest.approx(2.0 - spent)
    more = accountant.remaining_steps(noise_multiplier=1.2, sample_rate=0.02)
    assert more > 0
    accountant.step(noise_multiplier=1.2, sample_rate=0.02, steps=more)
    assert accountant.get_epsilon()[0] <= 2.0
    accountant.step(noise_multiplier=1.2, sample_rate=0.02)
    assert accountant.get_epsilon()[0] > 2.0
    assert accountant.remaining_epsilon == 0.0
    assert accountant.remaining_steps(noise_multiplier=1.2, sample_rate=0.02) == 0
    assert DistributedRDPAccountant(2.0, 1e-5).remaining_steps(noise_multiplier=9, sample_rate=1e-4, at_most=7) == 7


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"noise_multiplier": 0}, "noise_multiplier: must be a finite number above 0, not 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier: must be a finite number"),
        ({"sample_rate": 1.1}, "sample_rate: must be above 0 and at most 1"),
        ({"sample_rate": 0}, "sample_rate: must be above 0"),
        ({"steps": -1}, "steps: must be from 0"),
        ({"steps": 1.5}, "steps: must be a whole number"),
    ],
)
def test_invalid_steps_are_refused_and_not_counted(figures: dict[str, float], sentence: str) -> None:
    accountant = DistributedRDPAccountant(8.0, 1e-5)
    with pytest.raises(ConfigurationError, match=sentence):
        accountant.step(**({"noise_multiplier": 1.0, "sample_rate": 0.01} | figures))
    assert accountant.remaining_epsilon == 8.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-5), (math.inf, 1e-5), (8, 0), (8, 1), (8, 1e-320), ("8", 1e-5)])
def test_invalid_targets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ConfigurationError, match=r"target_(epsilon|delta): must be"):
        DistributedRDPAccountant(epsilon, delta)
