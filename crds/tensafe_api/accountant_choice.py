"""Chooses the accountant of a job, and σ with it.

PLD needs 5 to 11 % less noise than RDP for the same ε, so a job that names no accountant gets PLD. Outside PLD's limits
it gets RDP. The choice depends on public figures only. A ledger keeps the accountant that it was created with.
"""

from __future__ import annotations

from tensafe_api import accounting
from tensafe_api.accounting import AccountantName
from tensafe_api.privacy_events import PrivacyEvent

MAX_PLD_STEPS, MIN_PLD_SIGMA, MAX_PLD_EPSILON = 20_000, 0.3, 20
"""A ledger may be charged ten times its steps, which is still within `accounting.PLD_STEPS_LIMIT`. The smaller σ is,
the more time and memory the distribution of a step takes."""

_RANGE = (
    f"PLD is for up to {MAX_PLD_STEPS} steps, a target of up to {MAX_PLD_EPSILON} and a noise multiplier of at least "
    f"{MIN_PLD_SIGMA}"
)
_ROUNDING = f"PLD needs a delta of at least {accounting.MIN_PLD_DELTA:g}, since the rounding of its FFT matters below"


class PLDLimitError(ValueError):
    """PLD was asked for outside its limits."""


def choose(
    asked: AccountantName | None,
    noise_multiplier: str | None,
    *,
    target_epsilon: float,
    sample_rate: float,
    steps: int,
    delta: float,
    earlier: tuple[PrivacyEvent, ...] = (),
) -> tuple[AccountantName, str]:
    """The accountant, and σ as a decimal string.

    Args:
        asked: the accountant to use; None: PLD within its limits, RDP outside.
        noise_multiplier: the σ to use; None: the smallest that keeps the target, by the accountant.
        target_epsilon: ε above 0.
        sample_rate: q in (0, 1].
        steps: the number of steps for which σ must keep the target.
        delta: the δ at which ε is computed; for a job that of `accounting.job_delta`.
        earlier: privacy events that ε counts too.

    Raises:
        PLDLimitError: PLD was asked for, and these figures are outside its limits.
        accounting.CalibrationError: no σ keeps the target.
    """

    def sigma_by(accountant: AccountantName) -> str:
        return noise_multiplier or accounting.calibrate(
            target_epsilon=target_epsilon,
            sample_rate=sample_rate,
            steps=steps,
            delta=delta,
            accountant=accountant,
            earlier=earlier,
        )

    if asked != "RDP":
        exceeded = _exceeded_limit(steps, target_epsilon, delta)
        if not exceeded:
            sigma = sigma_by("PLD")
            if float(sigma) >= MIN_PLD_SIGMA:
                return "PLD", sigma
            exceeded = _RANGE
        if asked == "PLD":
            raise PLDLimitError(exceeded)
    return "RDP", sigma_by("RDP")


def _exceeded_limit(steps: int, target_epsilon: float, delta: float) -> str:
    """The limit of PLD that these figures exceed; empty if none."""
    if accounting.is_too_small_for_pld(delta):
        return _ROUNDING
    return _RANGE if steps > MAX_PLD_STEPS or target_epsilon > MAX_PLD_EPSILON else ""
