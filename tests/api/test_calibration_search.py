"""The searches for σ and for the number of steps, with a formula in place of ε: what they try, and what they find."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from tensafe_api.accounting import calibration, composition, dp_library
from tensafe_api.accounting.calibration import MAX_CALIBRATED_SIGMA, MIN_CALIBRATED_SIGMA, CalibrationError, calibrate
from tensafe_api.accounting.composition import SAMPLER_SHARE_OF_DELTA, AccountantName, job_delta, steps_within
from tensafe_api.resolve import Claim
from tensafe_api.resources.mechanism import Mechanism, PrivacyEvent

RATE, STEPS, DELTA = 0.01, 400, 1e-5


class Formula:
    """ε = k·T/(400·σ) for T steps. For RDP k is 10, and for PLD it is `pld`.

    `tried` has the σ for which each accountant was asked.
    """

    def __init__(self, pld: float) -> None:
        self.factors = {"RDP": 10.0, "PLD": pld}
        self.tried: dict[str, list[float]] = {"RDP": [], "PLD": []}

    def __call__(
        self,
        *,
        sample_rate: float,
        noise_multiplier: float,
        steps: int,
        delta: float,
        accountant: AccountantName,
        earlier: tuple[PrivacyEvent, ...],
    ) -> float:
        assert (sample_rate, delta, earlier) == (RATE, DELTA, ()) and isinstance(steps, int)
        self.tried[accountant].append(noise_multiplier)
        return self.factors[accountant] * steps / STEPS / noise_multiplier

    def sigma(self, accountant: AccountantName, target: float) -> float:
        """The calibrated σ. The list of what was tried starts again."""
        self.tried = {"RDP": [], "PLD": []}
        return float(
            calibrate(target_epsilon=target, sample_rate=RATE, steps=STEPS, delta=DELTA, accountant=accountant)
        )


@pytest.fixture
def formula(monkeypatch: pytest.MonkeyPatch) -> Iterator[Formula]:
    made = Formula(pld=9.5)

    def once(
        rate: float, sigma: float, delta: float, by: AccountantName, earlier: tuple[PrivacyEvent, ...], steps: int
    ) -> float:
        return made(sample_rate=rate, noise_multiplier=sigma, steps=steps, delta=delta, accountant=by, earlier=earlier)

    monkeypatch.setattr(composition, "epsilon", made)
    monkeypatch.setattr(composition, "epsilon_once", once)
    calibration._calibrate.cache_clear()
    yield made
    calibration._calibrate.cache_clear()


@pytest.mark.parametrize("target", [0.01, 0.7, 3.0, 8.0, 9.9, 10.0, 19.0, 150.0])
@pytest.mark.parametrize("accountant", ["RDP", "PLD"])
@pytest.mark.parametrize("pld", [9.5, 8.75, 3.0, 0.6, 10.4, 45.0])
def test_sigma_is_the_smallest_with_six_decimals(
    formula: Formula, pld: float, accountant: AccountantName, target: float
) -> None:
    formula.factors["PLD"] = pld
    exact = formula.factors[accountant] / target
    expected = max(MIN_CALIBRATED_SIGMA, math.ceil(exact * 1e6 - 1e-6) / 1e6)
    assert formula.sigma(accountant, target) == pytest.approx(expected, abs=1e-9)


def test_target_that_is_met_exactly_is_met(formula: Formula) -> None:
    assert formula.sigma("RDP", 8.0) == 1.25 == 10.0 / 8.0
    assert formula.sigma("PLD", 9.5) == 1.0


def test_pld_is_tried_near_the_sigma_of_rdp_only(formula: Formula) -> None:
    """PLD is slow, and slower with a small σ."""
    assert formula.sigma("PLD", 2.0) == 4.75
    assert (min(formula.tried["PLD"]), max(formula.tried["PLD"])) == (4.375, 5.0)
    assert len(formula.tried["PLD"]) <= 10


def test_search_goes_down_in_steps_where_pld_needs_far_less_noise(formula: Formula) -> None:
    formula.factors["PLD"] = 3.0
    assert formula.sigma("PLD", 2.0) == 1.5
    assert min(formula.tried["PLD"]) == pytest.approx(5.0 * 0.875**10, abs=1e-4)


def test_pld_is_never_asked_below_the_minimum(formula: Formula) -> None:
    formula.factors["PLD"] = 1e-9
    assert formula.sigma("PLD", 150.0) == MIN_CALIBRATED_SIGMA == min(formula.tried["PLD"])


def test_pld_is_not_asked_where_rdp_meets_the_target_with_the_minimum(formula: Formula) -> None:
    assert formula.sigma("PLD", 200.0) == MIN_CALIBRATED_SIGMA
    assert formula.tried["PLD"] == []


def test_largest_sigma_is_tried_before_an_error(formula: Formula) -> None:
    assert formula.sigma("RDP", 10.0 / MAX_CALIBRATED_SIGMA) == MAX_CALIBRATED_SIGMA
    with pytest.raises(CalibrationError, match=r"no noise multiplier reaches ε 0\.0006 over 400 steps"):
        formula.sigma("RDP", 0.0006)


def test_accountant_is_rdp_unless_another_one_is_named(formula: Formula) -> None:
    assert calibrate(target_epsilon=8.0, sample_rate=RATE, steps=STEPS, delta=DELTA) == "1.25"
    assert formula.tried["PLD"] == []
    within = steps_within(target_epsilon=1.0, sample_rate=RATE, noise_multiplier=1.0, delta=DELTA, at_most=400)
    assert within == 40 and formula.tried["PLD"] == []


@pytest.mark.parametrize(("accountant", "most"), [("RDP", 40), ("PLD", 42)])
@pytest.mark.parametrize("at_most", [0, 1, 2, 3, 39, 40, 41, 42, 43, 100, 10**6])
def test_steps_within_a_target_are_counted_exactly(
    formula: Formula, accountant: AccountantName, most: int, at_most: int
) -> None:
    found = steps_within(
        target_epsilon=1.0,
        sample_rate=RATE,
        noise_multiplier=1.0,
        delta=DELTA,
        accountant=accountant,
        at_most=at_most,
    )
    assert found == min(most, at_most) and isinstance(found, int)


def test_claim_counts_the_affordable_steps_by_its_own_accountant(formula: Formula) -> None:
    figures = {"unit": "User", "workers": 1, "grid_bits": 20, "expected_batch_size": 50}
    mechanism = Mechanism(sample_rate=str(RATE), noise_multiplier="1", clip="1", **figures)
    share = 1 - SAMPLER_SHARE_OF_DELTA
    for accountant, most in (("RDP", 40), ("PLD", 42)):
        # The claim is computed at a part of δ: choose δ such that the part is that of the formula.
        claim = Claim(mechanism, 400, 0, 1.0, repr(DELTA / share), accountant)
        assert job_delta(claim.delta) == DELTA
        assert claim.claimed_steps(0) == most
        assert claim.claimed_steps(300) == 300
        assert [claim.affordable_steps(charged, 30) for charged in (0, 20, most - 1, most, 60)] == [
            30,
            most - 20,
            1,
            0,
            0,
        ]


def test_orders_without_a_usable_figure_bound_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero is a figure: from some σ on, one step of few records costs nothing that a float can hold."""

    class Accountant:
        orders = np.array([2.0, 3.0, 4.0, 5.0])
        rdp = np.array([0.0, -1e-9, math.nan, 0.5])

        def compose(self, event: object) -> None: ...

    monkeypatch.setattr(dp_library.rdp, "RdpAccountant", Accountant)
    orders, curve = composition._one_step_curve(0.123456789, 9.87654321)
    assert orders is Accountant.orders and curve.tolist() == [0.0, math.inf, math.inf, 0.5]
