"""ε from events, σ from ε: the only place where a privacy figure is made, and all of it is dp-accounting's.

RDP over dp-accounting's default orders is the contractual accountant; PLD is tighter, slower and shown beside it. An
RDP curve adds over steps, so the curve of one step is kept for each (q, σ) and scaled: the ε of a status costs a tenth
of a millisecond. PLD's memory grows with the loss, and whoever writes charges says how many steps there were: beyond
bounds that no sensible job comes near, PLD is left for RDP, which is never below it.

>>> round(epsilon(sample_rate=0.04, noise_multiplier=1.5, steps=2250, delta=1e-5), 5)
7.32934
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import absl.logging
import dp_accounting
import numpy as np
from dp_accounting import pld, rdp

from tensafe_api.privacy_events import Mechanism, PrivacyEvent, round_up

AccountantName = Literal["RDP", "PLD"]

SAMPLER_SHARE_OF_DELTA = 1e-6
"""The share of a job's δ that pays for the noise samplers' computed distance from the discrete Gaussian (the trainer
refuses to run where
dimension × steps × workers × distance × (1 + e^ε) is above it). A job's ε is computed at δ less this share."""

MIN_CALIBRATED_SIGMA = 0.05
"""Calibration never goes below this: a target so loose that less noise would do is met with more."""

MAX_CALIBRATED_SIGMA = 2.0**14
"""Nor above it: eight standard deviations of more would leave the coarsest integer grid (`resolve`)."""

MIN_PLD_DELTA = 1e-8
"""The least δ for PLD: dp-accounting composes by FFT, whose rounding, of about 1e-12, it does not add to δ. Against the
closed form of full batches an ε of 8 was seen too small by 0.003 at δ = 1e-10, and never at 1e-9."""

_PLD_ROUNDING = 1e-11
"""What is taken off δ before PLD is asked: ten times the rounding that was seen."""

PLD_STEPS_LIMIT, PLD_EPSILON_LIMIT = 200_000, 100.0
"""Beyond so many steps, or so large an ε of RDP's, PLD is not asked. Within them it took 160 MB and three seconds at
most, at every σ from 0.3; twice 10^9 steps would take a hundred gigabytes."""

SIGMA_DIGITS = 6
_SIGMA_PLACES = 10**SIGMA_DIGITS
EPSILON_DIGITS = 3

# PLD's and RDP's optimisers say "failed to converge" on orders that do not matter.
absl.logging.set_verbosity(absl.logging.ERROR)


class CalibrationError(ValueError):
    """No noise multiplier that a grid could carry reaches the target."""


def epsilon(
    *, sample_rate: float, noise_multiplier: float, steps: int, delta: float, accountant: AccountantName = "RDP"
) -> float:
    """ε at `delta` of `steps` Poisson-sampled Gaussian steps, under add-or-remove-one adjacency.

    Args:
        sample_rate: q in (0, 1].
        noise_multiplier: σ > 0, in clip norms.
        steps: charged steps; 0 steps spend nothing.
        delta: δ in (0, 1).
        accountant: RDP (contractual) or PLD, where PLD is within bounds.

    Returns:
        An upper bound of ε; infinity where the accountant has no finite one.
    """
    if steps == 0:
        return 0.0
    by_rdp = _rdp_epsilon_of_steps(sample_rate, noise_multiplier, steps, delta)
    if accountant == "RDP" or _beyond_reach_of_pld(steps, by_rdp):
        return by_rdp
    return _pld_epsilon(sample_rate, noise_multiplier, steps, delta)


def epsilon_of_events(events: Sequence[PrivacyEvent], delta: float, accountant: AccountantName = "RDP") -> float:
    """ε at `delta` of everything in `events`, composed in one accountant: what `tensafe` claims and what a verifier
    recomputes.
    """
    charged = [event for event in events if event.steps]
    if not charged:
        return 0.0
    curves = [_one_step_curve(float(event.sample_rate), float(event.noise_multiplier)) for event in charged]
    total = sum(curve * event.steps for (_, curve), event in zip(curves, charged))
    by_rdp = _rdp_epsilon(curves[0][0], np.asarray(total), delta)
    if accountant == "RDP" or _beyond_reach_of_pld(sum(event.steps for event in charged), by_rdp):
        return by_rdp
    composed = pld.PLDAccountant()
    for event in charged:
        composed.compose(dp_event(event))
    return _pld_at(composed, delta)


def dp_event(event: PrivacyEvent) -> dp_accounting.DpEvent:
    """An event for dp-accounting."""
    composed: dp_accounting.DpEvent = dp_accounting.SelfComposedDpEvent(
        _one_step(float(event.sample_rate), float(event.noise_multiplier)), event.steps
    )
    return composed


def calibrate(
    *, target_epsilon: float, sample_rate: float, steps: int, delta: float, accountant: AccountantName = "RDP"
) -> str:
    """The least σ of six decimals whose ε over `steps` steps is at most `target_epsilon`.

    The ε is of the string itself, so the claim holds for the very figure that is stored and run with.

    Raises:
        CalibrationError: where not even σ = 2^14 reaches the target.
    """
    return _calibrate(target_epsilon, sample_rate, steps, delta, accountant)


def steps_within(
    *,
    target_epsilon: float,
    sample_rate: float,
    noise_multiplier: float,
    delta: float,
    accountant: AccountantName = "RDP",
    at_most: int,
) -> int:
    """The largest number of steps, up to `at_most`, whose ε is at most `target_epsilon`."""

    def fits(steps: int) -> bool:
        return (
            epsilon(
                sample_rate=sample_rate,
                noise_multiplier=noise_multiplier,
                steps=steps,
                delta=delta,
                accountant=accountant,
            )
            <= target_epsilon
        )

    if fits(at_most):
        return at_most
    low, high = 0, at_most  # fits(low), not fits(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def job_delta(target_delta: str) -> float:
    """The δ at which a job's ε is computed: the target less the share that pays for the noise samplers."""
    return float(target_delta) * (1.0 - SAMPLER_SHARE_OF_DELTA)


def job_epsilon(mechanism: Mechanism, steps: int, target_delta: str, accountant: AccountantName = "RDP") -> float:
    """ε of `steps` charged steps of a job, against readers who may hold the shares of `mechanism.colluders` workers."""
    return epsilon(
        sample_rate=float(mechanism.sample_rate),
        noise_multiplier=float(mechanism.noise_multiplier),
        steps=steps,
        delta=job_delta(target_delta),
        accountant=accountant,
    )


def claimed_steps(
    mechanism: Mechanism,
    *,
    planned: int,
    charged: int,
    target_epsilon: float,
    target_delta: str,
    accountant: AccountantName = "RDP",
) -> int:
    """The steps to sign off: as many as were planned, since where a run stopped may have depended on what it showed;
    fewer only where the budget, which looks at no output, could never have allowed them.
    """
    possible = steps_within(
        target_epsilon=target_epsilon,
        sample_rate=float(mechanism.sample_rate),
        noise_multiplier=float(mechanism.noise_multiplier),
        delta=job_delta(target_delta),
        accountant=accountant,
        at_most=planned,
    )
    return max(charged, possible)


def outsider_epsilon(mechanism: Mechanism, steps: int, target_delta: str, accountant: AccountantName = "RDP") -> float:
    """ε of `steps` charged steps against somebody who holds no worker's share of the noise."""
    return epsilon(
        sample_rate=float(mechanism.sample_rate),
        noise_multiplier=mechanism.outsider_noise_multiplier,
        steps=steps,
        delta=job_delta(target_delta),
        accountant=accountant,
    )


def format_epsilon(value: float) -> str:
    """An ε as it is shown and stored: three decimals, rounded up; `inf` where there is no finite bound."""
    return round_up(value, EPSILON_DIGITS) if math.isfinite(value) else "inf"


def _beyond_reach_of_pld(steps: int, epsilon_by_rdp: float) -> bool:
    return steps > PLD_STEPS_LIMIT or epsilon_by_rdp > PLD_EPSILON_LIMIT


def _one_step(sample_rate: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One charged step, under add-or-remove-one adjacency."""
    step: dp_accounting.DpEvent = dp_accounting.PoissonSampledDpEvent(
        sample_rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    return step


def _rdp_epsilon(orders: np.ndarray, curve: np.ndarray, delta: float) -> float:
    value, _ = rdp.compute_epsilon(orders, curve, delta)
    return float(value)


@functools.lru_cache(maxsize=256)
def _one_step_curve(sample_rate: float, noise_multiplier: float) -> tuple[np.ndarray, np.ndarray]:
    accountant = rdp.RdpAccountant()
    accountant.compose(_one_step(sample_rate, noise_multiplier))
    # At a huge σ or a tiny q cancellation makes some orders negative, at a tiny σ none a number, for which
    # dp-accounting would say ε = 0: they are left out.
    return accountant.orders, np.where(accountant.rdp >= 0, accountant.rdp, np.inf)


@functools.lru_cache(maxsize=1024)
def _rdp_epsilon_of_steps(sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    orders, curve = _one_step_curve(sample_rate, noise_multiplier)
    return _rdp_epsilon(orders, curve * steps, delta)


@functools.lru_cache(maxsize=1024)
def _pld_epsilon(sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    accountant = pld.PLDAccountant()
    accountant.compose(_one_step(sample_rate, noise_multiplier), steps)
    return _pld_at(accountant, delta)


def _pld_at(accountant: pld.PLDAccountant, delta: float) -> float:
    """ε at δ less what FFT may have rounded; infinite where that is too much of δ to be vouched for."""
    if delta < MIN_PLD_DELTA * (1 - 2 * SAMPLER_SHARE_OF_DELTA):
        return math.inf
    return float(accountant.get_epsilon(delta - _PLD_ROUNDING))


@functools.lru_cache(maxsize=256)
def _calibrate(target_epsilon: float, sample_rate: float, steps: int, delta: float, accountant: AccountantName) -> str:
    """Bisection over σ's six-decimal strings themselves, so that the answer is the least of them."""
    least, most = int(MIN_CALIBRATED_SIGMA * _SIGMA_PLACES), int(MAX_CALIBRATED_SIGMA * _SIGMA_PLACES)

    def fits(places: int, by: AccountantName = accountant) -> bool:
        sigma = float(_sigma(places))
        spent = epsilon(sample_rate=sample_rate, noise_multiplier=sigma, steps=steps, delta=delta, accountant=by)
        return spent <= target_epsilon

    if fits(least, "RDP"):
        return _sigma(least)
    low, high = least, _SIGMA_PLACES
    if accountant == "PLD":
        # At a small σ PLD takes half a minute, so its search begins just below RDP's answer.
        high = int(Decimal(_calibrate(target_epsilon, sample_rate, steps, delta, "RDP")) * _SIGMA_PLACES)
        low = max(least, high * 7 // 10)
        while low > least and fits(low):
            low, high = max(least, low * 7 // 10), low
    while not fits(high):
        if high == most:
            raise CalibrationError(f"no noise multiplier reaches ε {target_epsilon:g} over {steps} steps")
        low, high = high, min(most, 2 * high)
    while high - low > 1:  # high fits, low does not
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return _sigma(high)


def _sigma(places: int) -> str:
    return round_up(Decimal(places).scaleb(-SIGMA_DIGITS), SIGMA_DIGITS)
