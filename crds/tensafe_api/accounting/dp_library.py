"""The privacy of one step, as dp-accounting computes it.

Only here are dp-accounting, NumPy and SciPy imported. `accounting` imports this module when it computes its first
figure, because the import takes a second and half of the operator's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import absl.logging
import dp_accounting
import numpy as np
from dp_accounting import rdp
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism

# The optimisers of PLD and RDP warn "failed to converge" for orders that do not affect the result.
absl.logging.set_verbosity(absl.logging.ERROR)


def rdp_curve(sample_rate: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """The orders of RDP, and at each the divergence of a Poisson-sampled Gaussian step; infinite where unknown."""
    accountant = rdp.RdpAccountant()  # its default is add-or-remove-one adjacency
    accountant.compose(dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(sigma)))
    # With a huge σ or a tiny q, cancellation makes some orders negative; with a tiny σ some are not a number.
    # dp-accounting would return ε = 0 for them, so they are excluded.
    return accountant.orders, np.where(accountant.rdp >= 0, accountant.rdp, np.inf)


def rdp_epsilon(orders: np.ndarray, curve: np.ndarray, delta: float) -> float:
    """ε at `delta` of an RDP curve."""
    value, _ = rdp.compute_epsilon(orders, np.asarray(curve), delta)
    return float(value)


def step_pld(sample_rate: float, sigma: float, interval: float) -> PrivacyLossDistribution:
    """The privacy losses of a Poisson-sampled Gaussian step, rounded up, as `PLDAccountant` computes them."""
    return from_gaussian_mechanism(
        standard_deviation=sigma, sampling_prob=sample_rate, value_discretization_interval=interval
    )


def compose(distributions: Sequence[PrivacyLossDistribution]) -> PrivacyLossDistribution:
    """The privacy losses of all these mechanisms together; at least one."""
    return functools.reduce(lambda one, other: one.compose(other), distributions)
