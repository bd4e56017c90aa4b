"""Computes ε from privacy events, and σ from ε. All privacy figures come from here; dp-accounting computes them.

RDP over the default orders of dp-accounting is the contractual accountant. PLD is tighter and slower, and is shown in
addition. The RDP curves of steps add up, so the curve of one step is cached for each (q, σ) and scaled: the ε of a
status takes a tenth of a millisecond. The memory of PLD grows with the privacy loss, and the number of steps comes from
the pod that writes charges. Beyond bounds that no sensible job reaches, RDP replaces PLD; it is never below PLD.

>>> round(epsilon(sample_rate=0.04, noise_multiplier=1.5, steps=2250, delta=1e-5), 5)
7.32934
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import absl.logging
import dp_accounting
import numpy as np
from dp_accounting import pld, rdp
from scipy.optimize import brentq

from tensafe_api.privacy_events import Mechanism, PrivacyEvent, round_up

AccountantName = Literal["RDP", "PLD"]

SAMPLER_SHARE_OF_DELTA = 1e-6
"""The share of a job's δ that pays for the computed distance of the noise samplers from the discrete Gaussian. The
trainer refuses to run if dimension × steps × workers × distance × (1 + e^ε) is above this share. A job's ε is computed
at δ minus this share."""

MIN_CALIBRATED_SIGMA = 0.05
"""The smallest σ that calibration returns. A target so loose that less noise would suffice gets this σ."""

MAX_CALIBRATED_SIGMA = 2.0**14
"""The largest σ that calibration returns. Eight standard deviations of a larger σ would exceed the coarsest integer
grid (`resolve`)."""

MIN_PLD_DELTA = 1e-8
"""The smallest δ for PLD. dp-accounting composes by FFT and does not add its rounding, of about 1e-12, to δ. Compared
with the closed form of full batches, an ε of 8 was too small by 0.003 at δ = 1e-10, and never too small at 1e-9."""

PLD_INTERVAL = 1e-4
"""The interval at which PLD samples privacy losses: dp-accounting's default. A coarser one gives a larger ε."""

_COARSE_PLD_INTERVAL = 1e-3

PLD_SIGMA_SHARE = 1e-6
"""The share of σ that PLD leaves out. The noise is discrete, and PLD is that of the continuous Gaussian. A step with
discrete noise of at least 2,830 grid steps is post-processing of one with continuous noise of this smaller σ, up to a
factor of 1 ± 10^-100 (decision 0038). `resolve` allows no coarser grid for PLD."""

_PLD_ROUNDING = 1e-11
"""Subtracted from δ before PLD computes ε: ten times the observed rounding."""

PLD_STEPS_LIMIT, PLD_EPSILON_LIMIT = 200_000, 100.0
"""Above this number of steps, or this ε by RDP, PLD is not used. Within the limits it took at most 160 MB and three
seconds for every σ from 0.3; two billion steps would take a hundred gigabytes."""

SIGMA_DIGITS = 6
_SIGMA_PLACES = 10**SIGMA_DIGITS
EPSILON_DIGITS = 3

# The optimisers of PLD and RDP warn "failed to converge" for orders that do not affect the result.
absl.logging.set_verbosity(absl.logging.ERROR)


class CalibrationError(ValueError):
    """No noise multiplier that fits the integer grid reaches the target."""


def epsilon(
    *, sample_rate: float, noise_multiplier: float, steps: int, delta: float, accountant: AccountantName = "RDP"
) -> float:
    """ε at `delta` of `steps` Poisson-sampled Gaussian steps, the same for each adjacency (`Adjacency` has the proof).

    Args:
        sample_rate: q in (0, 1].
        noise_multiplier: σ > 0, in clip norms.
        steps: number of charged steps; 0 steps spend nothing.
        delta: δ in (0, 1).
        accountant: RDP (contractual), or PLD within its limits.

    Returns:
        An upper bound of ε; infinity if the accountant has no finite one.
    """
    if steps == 0:
        return 0.0
    by_rdp = _rdp_epsilon_of_steps(sample_rate, noise_multiplier, steps, delta)
    if accountant == "RDP" or _exceeds_pld_limits(steps, by_rdp):
        return by_rdp
    return _pld_epsilon(sample_rate, noise_multiplier, steps, delta)


def epsilon_of_events(events: Sequence[PrivacyEvent], delta: float, accountant: AccountantName = "RDP") -> float:
    """ε at `delta` of all `events`, composed in one accountant. `tensafe` claims it, and a verifier recomputes it."""
    charged = [event for event in events if event.steps]
    if not charged:
        return 0.0
    curves = [_one_step_curve(float(event.sample_rate), float(event.noise_multiplier)) for event in charged]
    total = sum(curve * event.steps for (_, curve), event in zip(curves, charged))
    by_rdp = _rdp_epsilon(curves[0][0], np.asarray(total), delta)
    if accountant == "RDP" or _exceeds_pld_limits(sum(event.steps for event in charged), by_rdp):
        return by_rdp
    composed = pld.PLDAccountant(value_discretization_interval=PLD_INTERVAL)
    for event in charged:
        composed.compose(_pld_step(float(event.sample_rate), float(event.noise_multiplier)), event.steps)
    return _pld_at(composed, delta)


def dp_event(event: PrivacyEvent) -> dp_accounting.DpEvent:
    """A privacy event in the form of dp-accounting."""
    composed: dp_accounting.DpEvent = dp_accounting.SelfComposedDpEvent(
        _one_step(float(event.sample_rate), float(event.noise_multiplier)), event.steps
    )
    return composed


def calibrate(
    *, target_epsilon: float, sample_rate: float, steps: int, delta: float, accountant: AccountantName = "RDP"
) -> str:
    """The smallest σ with six decimals whose ε over `steps` steps is at most `target_epsilon`.

    ε is computed from the returned string, so the claim holds for exactly the figure that is stored and used.

    Raises:
        CalibrationError: not even σ = 2^14 reaches the target.
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
    """The largest number of steps, up to `at_most`, with an ε of at most `target_epsilon`."""

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
    """The δ at which a job's ε is computed: the target minus the share that pays for the noise samplers."""
    return float(target_delta) * (1.0 - SAMPLER_SHARE_OF_DELTA)


def job_epsilon(mechanism: Mechanism, steps: int, target_delta: str, accountant: AccountantName = "RDP") -> float:
    """ε of `steps` charged steps against readers who hold the noise shares of `mechanism.colluders` workers."""
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
    accountant: AccountantName,
) -> int:
    """The number of steps to sign off.

    It is at least the number of planned steps, because where a run stopped may have depended on its results. It is
    lower only if the budget, which does not depend on any result, could never have allowed all planned steps.
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
    """ε of `steps` charged steps against an adversary who holds no worker's share of the noise."""
    return epsilon(
        sample_rate=float(mechanism.sample_rate),
        noise_multiplier=mechanism.outsider_noise_multiplier,
        steps=steps,
        delta=job_delta(target_delta),
        accountant=accountant,
    )


def format_epsilon(value: float) -> str:
    """ε as text for statuses and statements: three decimals, rounded up; `inf` if there is no finite bound."""
    return round_up(value, EPSILON_DIGITS) if math.isfinite(value) else "inf"


def _exceeds_pld_limits(steps: int, epsilon_by_rdp: float) -> bool:
    return steps > PLD_STEPS_LIMIT or epsilon_by_rdp > PLD_EPSILON_LIMIT


def _one_step(sample_rate: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One charged step. dp-accounting's default is add-or-remove-one adjacency."""
    step: dp_accounting.DpEvent = dp_accounting.PoissonSampledDpEvent(
        sample_rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    return step


def _pld_step(sample_rate: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One charged step for PLD, with the share of σ that pays for the difference of discrete and continuous noise."""
    return _one_step(sample_rate, noise_multiplier * (1.0 - PLD_SIGMA_SHARE))


def _rdp_epsilon(orders: np.ndarray, curve: np.ndarray, delta: float) -> float:
    value, _ = rdp.compute_epsilon(orders, curve, delta)
    return float(value)


@functools.lru_cache(maxsize=256)
def _one_step_curve(sample_rate: float, noise_multiplier: float) -> tuple[np.ndarray, np.ndarray]:
    accountant = rdp.RdpAccountant()
    accountant.compose(_one_step(sample_rate, noise_multiplier))
    # With a huge σ or a tiny q, cancellation makes some orders negative; with a tiny σ some are not a number.
    # dp-accounting would return ε = 0 for them, so they are excluded.
    return accountant.orders, np.where(accountant.rdp >= 0, accountant.rdp, np.inf)


@functools.lru_cache(maxsize=1024)
def _rdp_epsilon_of_steps(sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    orders, curve = _one_step_curve(sample_rate, noise_multiplier)
    return _rdp_epsilon(orders, curve * steps, delta)


@functools.lru_cache(maxsize=1024)
def _pld_epsilon(
    sample_rate: float, noise_multiplier: float, steps: int, delta: float, interval: float = PLD_INTERVAL
) -> float:
    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    accountant.compose(_pld_step(sample_rate, noise_multiplier), steps)
    return _pld_at(accountant, delta)


def _pld_at(accountant: pld.PLDAccountant, delta: float) -> float:
    """ε at δ minus the possible rounding of the FFT; infinity if δ is too small for the rounding to be negligible."""
    if delta < MIN_PLD_DELTA * (1 - 2 * SAMPLER_SHARE_OF_DELTA):
        return math.inf
    return float(accountant.get_epsilon(delta - _PLD_ROUNDING))


@functools.lru_cache(maxsize=256)
def _calibrate(target_epsilon: float, sample_rate: float, steps: int, delta: float, accountant: AccountantName) -> str:
    """The smallest six-decimal σ that meets the target."""
    least, most = int(MIN_CALIBRATED_SIGMA * _SIGMA_PLACES), int(MAX_CALIBRATED_SIGMA * _SIGMA_PLACES)

    def spent(places: int, by: AccountantName = accountant) -> float:
        sigma = float(_sigma(places))
        return epsilon(sample_rate=sample_rate, noise_multiplier=sigma, steps=steps, delta=delta, accountant=by)

    def fits(places: int, by: AccountantName = accountant) -> bool:
        return spent(places, by) <= target_epsilon

    def excess(places: float) -> float:
        """ln(ε / target), at most 0 where σ meets the target. It is close to a straight line, so few steps suffice."""
        value = min(max(spent(round(places)), math.ulp(0.0)), sys.float_info.max)  # has a finite logarithm
        return math.log(value) - math.log(target_epsilon)

    if fits(least, "RDP"):
        return _sigma(least)
    low, high = least, _SIGMA_PLACES
    if accountant == "PLD":
        # PLD takes a second with a small σ, so its search starts at the σ of a coarser PLD, which is ten times faster.
        high = _coarse_pld_sigma(target_epsilon, sample_rate, steps, delta)
        width = high // 10_000 + 1
        low = max(least, high - width)
        while fits(low):
            if low == least:
                return _sigma(least)
            width *= 8
            low, high = max(least, low - width), low
    while not fits(high):
        if high == most:
            raise CalibrationError(f"no noise multiplier reaches ε {target_epsilon:g} over {steps} steps")
        low, high = high, min(most, 2 * high)
    near = math.floor(brentq(excess, low, high, xtol=0.5, maxiter=1000))  # high fits, low does not
    smallest = next(places for places in range(near - 1, high + 1) if fits(places))
    return _sigma(smallest)


def _coarse_pld_sigma(target_epsilon: float, sample_rate: float, steps: int, delta: float) -> int:
    """A σ, in units of its last decimal, near the smallest one that meets the target by a coarse PLD."""
    least = int(MIN_CALIBRATED_SIGMA * _SIGMA_PLACES)
    high = int(Decimal(_calibrate(target_epsilon, sample_rate, steps, delta, "RDP")) * _SIGMA_PLACES)

    def excess(places: float) -> float:
        value = _pld_epsilon(sample_rate, round(places) / _SIGMA_PLACES, steps, delta, _COARSE_PLD_INTERVAL)
        return math.log(min(max(value, math.ulp(0.0)), sys.float_info.max)) - math.log(target_epsilon)

    if excess(high) > 0:
        return high
    low = max(least, high * 9 // 10)
    while excess(low) <= 0:
        if low == least:
            return least
        low, high = max(least, low * 7 // 10), low
    accuracy = max(1.0, high * 1e-5)
    root: float = brentq(excess, low, high, xtol=accuracy)
    return math.ceil(root + accuracy)


def _sigma(places: int) -> str:
    return round_up(Decimal(places).scaleb(-SIGMA_DIGITS), SIGMA_DIGITS)
