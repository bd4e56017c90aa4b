"""Prints ε, and σ for an ε, over a grid of mechanisms, every bit of it: by plain dp-accounting, or as the operator.

    python epsilon_grid.py           # plain dp-accounting
    python epsilon_grid.py --lean    # as the operator imports it (`tensafe_operator.lean_scipy`)
    python epsilon_grid.py --part    # with every ninth mechanism only

Both must print the same. A test and the build of the operator's image compare them. The last lines come from
dp-accounting's own accountants, without any code of this project.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

if "--lean" in sys.argv:
    from tensafe_operator import lean_scipy

    lean_scipy.install()

import absl.logging
import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from tensafe_api import accounting, calibration
from tensafe_api.privacy_events import PrivacyEvent

RATES = (1.0, 0.4, 0.04, 1e-3, 1e-6)
SIGMAS = (0.05, 0.3, 0.5, 0.8, 1.0, 2.760806, 20.0, 300.0, 2.0**14)
STEPS = (1, 7, 900, 20_000, 200_000, 10**7)
DELTAS = (1e-3, 1e-5, 1e-8)


def event(sample_rate: str, noise_multiplier: str, steps: int) -> PrivacyEvent:
    """The privacy event of an earlier training."""
    return PrivacyEvent(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)


EARLIER = (
    (event("0.013", "1.7", 60),),
    (event("1", "9", 1), event("0.2", "0.9", 15)),
    tuple(event("0.01", f"{1 + number / 10}", 10 + number) for number in range(12)),
)


def chosen(*axes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The points of a grid, or with `--part` every ninth of them."""
    return itertools.islice(itertools.product(*axes), 0, None, 9 if "--part" in sys.argv else 1)


def show(*figures: object, value: float | str) -> None:
    """Print one line: what was computed, and every bit of the result."""
    print(*figures, value.hex() if isinstance(value, float) else value)


def jobs() -> None:
    """Figures of `tensafe_api.accounting`."""
    for rate, sigma, steps, delta in chosen(RATES, SIGMAS, STEPS, DELTAS):
        value = accounting.epsilon(sample_rate=rate, noise_multiplier=sigma, steps=steps, delta=delta)
        show("RDP", rate, sigma, steps, delta, value=value)
    for rate, sigma, steps in chosen(RATES, SIGMAS[1:], STEPS):
        figures = {"sample_rate": rate, "noise_multiplier": sigma, "steps": steps, "accountant": "PLD"}
        for delta in DELTAS:
            show("PLD", rate, sigma, steps, delta, value=accounting.epsilon(**figures, delta=delta))
    for earlier, name, steps in chosen(EARLIER, ("RDP", "PLD"), (0, 1, 300)):
        figures = {"sample_rate": 0.04, "noise_multiplier": 1.1, "steps": steps, "delta": 1e-5, "accountant": name}
        show(name, len(earlier), "earlier", steps, value=accounting.epsilon(**figures, earlier=earlier))
    for name, target, rate, earlier in chosen(("RDP", "PLD"), (0.7, 8.0), (1.0, 0.04), ((), EARLIER[0])):
        figures = {"target_epsilon": target, "sample_rate": rate, "steps": 400, "delta": 1e-5, "accountant": name}
        show("σ", name, target, rate, len(earlier), value=calibration.calibrate(**figures, earlier=earlier))


def library() -> None:
    """Figures of dp-accounting's accountants, for each adjacency that they support."""
    relation = dp_accounting.NeighboringRelation
    kinds = [(RdpAccountant, each) for each in (relation.ADD_OR_REMOVE_ONE, relation.REPLACE_ONE)]
    kinds += [(PLDAccountant, each) for each in (relation.ADD_OR_REMOVE_ONE, relation.REPLACE_ONE)]
    mixes = [[(rate, sigma, 50)] for rate, sigma in itertools.product((1.0, 0.04), (0.5, 1.1, 30.0))]
    mixes += [[(0.04, 1.1, 50), (1.0, 12.0, 2)], [(0.3, 2.0, 1), (0.01, 0.8, 99), (0.001, 0.6, 300)]]
    for (kind, adjacency), mix in chosen(kinds, mixes):
        accountant = kind(neighboring_relation=adjacency)
        for rate, sigma, steps in mix:
            step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
            if not accountant.supports(step):
                show(kind.__name__, adjacency.name, mix, value="unsupported")
                break
            accountant.compose(step, steps)
        else:
            show(kind.__name__, adjacency.name, mix, value=float(accountant.get_epsilon(1e-5)))


if __name__ == "__main__":
    absl.logging.set_verbosity(absl.logging.ERROR)
    warnings.simplefilter("ignore")
    jobs()
    library()
