"""Computes ε from privacy events. All privacy figures come from here; dp-accounting computes them.

PLD is the accountant of a job within limits, and RDP, which is looser, outside (`accountant_choice`). The RDP curves of
steps add up, so the curve of one step is cached for each (q, σ) and scaled: an ε takes a tenth of a millisecond. For
PLD the distribution of one step is cached: an ε takes a tenth of a second, and the first one of a (q, σ) up to half a
second. The memory of PLD grows with the privacy loss, and the number of steps comes from the pod that writes charges.
Beyond bounds that no sensible job reaches, RDP replaces PLD; it is valid as well, and rarely below PLD.

`dp_library`, which imports dp-accounting and SciPy, is imported with the first figure that is computed.

>>> round(epsilon(sample_rate=0.04, noise_multiplier=1.5, steps=2250, delta=1e-5), 5)
7.32935
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from tensafe_api.accounting.loss_intervals import largest_loss, loss_interval
from tensafe_api.resources.mechanism import Mechanism, PrivacyEvent, round_up

if TYPE_CHECKING:
    import numpy as np
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

AccountantName = Literal["RDP", "PLD"]

SAMPLER_SHARE_OF_DELTA = 1e-6
"""The share of a job's δ that pays for the computed distance of the noise samplers from the discrete Gaussian. The
trainer refuses to run if dimension × steps × workers × distance × (1 + e^ε) is above this share. A job's ε is computed
at δ minus this share."""

LARGEST_PAID_EPSILON = 30.0
"""Up to this ε, a job whose noise samplers cost more than their share of δ is refused. Above it, the factor e^ε makes
any distance cost more, and such an ε gives no protection that a refusal could keep."""

MIN_PLD_DELTA = 1e-8
"""The smallest δ for PLD. dp-accounting composes by FFT and does not add its rounding to δ."""

SIGMA_SHARE = 1e-6
"""The share of σ that every ε leaves out. The noise is discrete, and dp-accounting knows the continuous Gaussian. With
at least MIN_NOISE grid steps of noise, a step is post-processing of a step with continuous noise of this
smaller σ, up to a factor of 1 ± 10^-100 (decision 0038)."""

MIN_NOISE = 2_830
"""The smallest standard deviation of the noise in grid steps for which SIGMA_SHARE pays, with up to 256 shares."""

_PLD_ROUNDING, _PLD_ROUNDING_PER_STEP = 1e-11, 1e-15
"""Subtracted from δ before PLD computes ε. The rounding of the FFT grows with the number of steps: of 1,800 random
mechanisms the largest was 9e-12 at 20,000 steps, and 4.4e-11 at 200,000."""

PLD_STEPS_LIMIT, PLD_EPSILON_LIMIT = 200_000, 100.0
"""Above this number of steps, or this ε by RDP, PLD is not used. Within the limits it took at most 150 MB and half a
second for every σ from 0.3; two billion steps would take gigabytes."""

PLD_POINTS_LIMIT = 1_000_000
"""Above this number of intervals, PLD is not used for several kinds of steps together. Authors of jobs write earlier
ones. Of 350 random manifests, σ took at most 10 seconds, and 290 MB with what the caches keep."""

FIGURES_KEPT = 4096
"""How many figures of each kind are kept, so that jobs with equal mechanisms share them."""

_TAIL = 1e-15
"""The probability of the losses that dp-accounting cuts off when it composes steps."""

EPSILON_DIGITS = 3


@functools.cache
def load() -> ModuleType:
    """Import dp-accounting. The first figure does, and it takes up to a second."""
    from tensafe_api.accounting import dp_library

    return dp_library


def epsilon(
    *,
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    accountant: AccountantName = "RDP",
    earlier: tuple[PrivacyEvent, ...] = (),
) -> float:
    """ε at `delta` of `steps` Poisson-sampled Gaussian steps, the same for each adjacency (`Adjacency` has the proof).

    Args:
        sample_rate: q in (0, 1].
        noise_multiplier: σ > 0, in clip norms.
        steps: number of charged steps; 0 steps spend nothing.
        delta: δ in (0, 1).
        accountant: RDP, or PLD within its limits.
        earlier: privacy events that the steps compose with.

    Returns:
        An upper bound of ε; infinity if the accountant has no finite one.
    """
    return _kept_epsilon(sample_rate, noise_multiplier, delta, accountant, earlier, steps)


def epsilon_once(
    sample_rate: float,
    noise_multiplier: float,
    delta: float,
    accountant: AccountantName,
    earlier: tuple[PrivacyEvent, ...],
    steps: int,
) -> float:
    """`epsilon` of figures that are asked for once, such as those of a search. It is not kept."""
    if earlier:
        own = PrivacyEvent(sample_rate=repr(sample_rate), noise_multiplier=repr(noise_multiplier), steps=steps)
        return _composed_epsilon((*earlier, own), delta, accountant)
    if steps == 0:
        return 0.0
    orders, curve = _one_step_curve(sample_rate, noise_multiplier)
    by_rdp = _rdp_epsilon(orders, curve * steps, delta)
    if accountant == "RDP" or _exceeds_pld_limits(steps, by_rdp):
        return by_rdp
    return _pld_epsilon(sample_rate, noise_multiplier, steps, delta)


_kept_epsilon = functools.lru_cache(maxsize=FIGURES_KEPT)(epsilon_once)


def epsilon_of_events(events: Sequence[PrivacyEvent], delta: float, accountant: AccountantName = "RDP") -> float:
    """ε at `delta` of all `events`, composed in one accountant. `tensafe` claims it, and a verifier recomputes it."""
    return _kept_composed_epsilon(tuple(events), delta, accountant)


def _composed_epsilon(events: tuple[PrivacyEvent, ...], delta: float, accountant: AccountantName) -> float:
    charged = [event for event in events if event.steps]
    if not charged:
        return 0.0
    kinds, steps = _kinds(charged), sum(event.steps for event in charged)
    by_rdp = _rdp_epsilon_of_events(charged, delta)
    if accountant == "RDP" or _exceeds_pld_limits(steps, by_rdp) or is_pld_too_large(charged):
        return by_rdp
    interval = loss_interval(kinds)
    before: Counter[tuple[float, float]] = Counter()
    for kind, event in zip(kinds[:-1], charged):
        before[kind] += event.steps
    # Those before the last one are the same for each number of steps of a job.
    earlier = [_composed_pld(tuple(before.items()), interval)] if before else []
    own = _one_step_pld(*kinds[-1], interval).self_compose(charged[-1].steps)
    return _pld_at(load().compose([own, *earlier]), steps, delta)


_kept_composed_epsilon = functools.lru_cache(maxsize=FIGURES_KEPT)(_composed_epsilon)


def pld_interval(events: Sequence[PrivacyEvent]) -> float:
    """The `value_discretization_interval` of dp-accounting with which PLD computes the ε of `events`."""
    return loss_interval(_kinds([event for event in events if event.steps]))


def steps_within(
    *,
    target_epsilon: float,
    sample_rate: float,
    noise_multiplier: float,
    delta: float,
    accountant: AccountantName = "RDP",
    earlier: tuple[PrivacyEvent, ...] = (),
    at_most: int,
) -> int:
    """The largest number of steps, up to `at_most`, with an ε of at most `target_epsilon` after `earlier`."""

    def fits(steps: int) -> bool:
        return (
            epsilon(
                sample_rate=sample_rate,
                noise_multiplier=noise_multiplier,
                steps=steps,
                delta=delta,
                accountant=accountant,
                earlier=earlier,
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


def log_cost_of_samplers(distance: float, epsilon: float) -> float:
    """The logarithm of what the noise samplers add to δ: (1 + e^ε) × `distance`, which is their total variation
    distance from the discrete Gaussian over all draws.
    """
    if distance <= 0:
        return -math.inf
    return math.log(distance) + epsilon + math.log1p(math.exp(-epsilon))


def log_share_of_samplers(target_delta: str) -> float:
    """The logarithm of the share of δ that pays for the noise samplers."""
    return math.log(float(target_delta) * SAMPLER_SHARE_OF_DELTA)


def job_epsilon(mechanism: Mechanism, steps: int, target_delta: str, accountant: AccountantName) -> float:
    """ε of `steps` charged steps against readers of the released outputs, who know no worker's share of the noise."""
    return epsilon(
        sample_rate=float(mechanism.sample_rate),
        noise_multiplier=float(mechanism.noise_multiplier),
        steps=steps,
        delta=job_delta(target_delta),
        accountant=accountant,
        earlier=mechanism.earlier_events,
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
        earlier=mechanism.earlier_events,
        at_most=planned,
    )
    return max(charged, possible)


def format_epsilon(value: float) -> str:
    """ε as text for statuses and statements: three decimals, rounded up; `inf` if there is no finite bound."""
    return round_up(value, EPSILON_DIGITS) if math.isfinite(value) else "inf"


def is_too_small_for_pld(delta: float) -> bool:
    """Whether the rounding of PLD matters at δ, which may lack the share of the noise samplers."""
    return delta < MIN_PLD_DELTA * (1 - 2 * SAMPLER_SHARE_OF_DELTA)


def is_pld_too_large(events: Sequence[PrivacyEvent]) -> bool:
    """Whether the privacy losses of steps of several kinds (q, σ) have more intervals than PLD_POINTS_LIMIT."""
    kinds = set(_kinds(events))
    if len(kinds) == 1:
        return False
    # An interval of one step takes several times as long as one of composed steps.
    of_single_steps = 4 * sum(largest_loss(*kind) for kind in kinds)
    width = 2 * _rdp_epsilon_of_events(events, _TAIL)  # each kind is composed with those before it
    return max(of_single_steps, len(kinds) * width) > PLD_POINTS_LIMIT * loss_interval(kinds)


def _exceeds_pld_limits(steps: int, epsilon_by_rdp: float) -> bool:
    return steps > PLD_STEPS_LIMIT or epsilon_by_rdp > PLD_EPSILON_LIMIT


def _accounted_sigma(noise_multiplier: float) -> float:
    """σ without the share that pays for the difference of discrete and continuous noise."""
    return noise_multiplier * (1.0 - SIGMA_SHARE)


def _rdp_epsilon_of_events(events: Sequence[PrivacyEvent], delta: float) -> float:
    curves = [_one_step_curve(*kind) for kind in _kinds(events)]
    total: Any = sum(curve * event.steps for (_, curve), event in zip(curves, events))
    return _rdp_epsilon(curves[0][0], total, delta)


def _rdp_epsilon(orders: np.ndarray, curve: np.ndarray, delta: float) -> float:
    return float(load().rdp_epsilon(orders, curve, delta))


@functools.lru_cache(maxsize=2048)
def _one_step_curve(sample_rate: float, noise_multiplier: float) -> tuple[np.ndarray, np.ndarray]:
    orders, curve = load().rdp_curve(sample_rate, _accounted_sigma(noise_multiplier))
    return orders, curve


def _pld_epsilon(sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    interval = loss_interval([(sample_rate, noise_multiplier)])
    return _pld_at(_one_step_pld(sample_rate, noise_multiplier, interval).self_compose(steps), steps, delta)


@functools.lru_cache(maxsize=8)
def _one_step_pld(sample_rate: float, noise_multiplier: float, interval: float) -> PrivacyLossDistribution:
    return load().step_pld(sample_rate, _accounted_sigma(noise_multiplier), interval)


@functools.lru_cache(maxsize=8)
def _composed_pld(
    steps_of_kinds: tuple[tuple[tuple[float, float], int], ...], interval: float
) -> PrivacyLossDistribution:
    """The privacy losses of all steps, of which there are so many of each kind (q, σ)."""
    composed = [_one_step_pld(*kind, interval).self_compose(steps) for kind, steps in steps_of_kinds]
    total: PrivacyLossDistribution = load().compose(composed)
    return total


def _kinds(events: Sequence[PrivacyEvent]) -> list[tuple[float, float]]:
    return [(float(event.sample_rate), float(event.noise_multiplier)) for event in events]


def _pld_at(composed: PrivacyLossDistribution, steps: int, delta: float) -> float:
    """ε at δ minus the possible rounding of the FFT; infinity if δ is too small for the rounding to be negligible."""
    if is_too_small_for_pld(delta):
        return math.inf
    return float(composed.get_epsilon_for_delta(delta - _PLD_ROUNDING - _PLD_ROUNDING_PER_STEP * steps))
