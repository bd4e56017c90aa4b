"""Chooses the accountant of a job, and σ with it.

PLD needs 5 to 12 % less noise than RDP for the same ε, so a job that names no accountant gets PLD. Outside PLD's limits
it gets RDP. The choice depends on public figures only. A ledger keeps the accountant that it was created with.
"""

from __future__ import annotations

from tensafe_api.accounting import calibration, composition
from tensafe_api.accounting.composition import AccountantName
from tensafe_api.resources.mechanism import PrivacyEvent

MAX_PLD_STEPS, MIN_PLD_SIGMA, MAX_PLD_EPSILON = 20_000, 0.3, 20
"""A ledger may be charged ten times its steps, which is still within `composition.PLD_STEPS_LIMIT`. The smaller σ is,
the more time and memory the distribution of a step takes."""

MAX_REPETITIONS = 10
"""A ledger may be charged so many times the steps of its plan."""


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
        delta: the δ at which ε is computed; for a job that of `composition.job_delta`.
        earlier: privacy events that ε counts too.

    Raises:
        PLDLimitError: PLD was asked for, and these figures are outside its limits.
        calibration.CalibrationError: no σ keeps the target.
    """

    def sigma_by(accountant: AccountantName) -> str:
        return noise_multiplier or calibration.calibrate(
            target_epsilon=target_epsilon,
            sample_rate=sample_rate,
            steps=steps,
            delta=delta,
            accountant=accountant,
            earlier=earlier,
        )

    if asked != "RDP":
        before = sum(event.steps for event in earlier)
        exceeded = limit_of_pld(steps=steps, target_epsilon=target_epsilon, delta=delta, steps_before=before)
        if not exceeded:
            sigma = sigma_by("PLD")
            exceeded = limit_of_pld(steps=steps, target_epsilon=target_epsilon, delta=delta, noise_multiplier=sigma)
            own = PrivacyEvent(sample_rate=repr(sample_rate), noise_multiplier=sigma, steps=steps)
            if not exceeded and composition.is_pld_too_large([*earlier, own]):
                exceeded = "PLD would take too much time and memory for the steps of spec.lora.initFrom"
            if not exceeded:
                return "PLD", sigma
        if asked == "PLD":
            raise PLDLimitError(exceeded)
    return "RDP", sigma_by("RDP")


def limit_of_pld(
    *, steps: int, target_epsilon: float, delta: float, noise_multiplier: str | None = None, steps_before: int = 0
) -> str:
    """The limit of PLD that these figures exceed, as a sentence with the figure; empty if none."""
    if composition.is_too_small_for_pld(delta):
        return f"PLD needs a delta of at least {composition.MIN_PLD_DELTA:g}, since its rounding errors matter below"
    if steps > MAX_PLD_STEPS:
        return f"PLD is for up to {MAX_PLD_STEPS:,} steps, and this job may be charged {steps:,}"
    if steps_before + MAX_REPETITIONS * steps > composition.PLD_STEPS_LIMIT:
        return (
            f"PLD is for up to {composition.PLD_STEPS_LIMIT:,} steps together, and beside those that this job may be "
            f"charged, spec.lora.initFrom has {steps_before:,}"
        )
    if target_epsilon > MAX_PLD_EPSILON:
        return f"PLD is for a target of up to {MAX_PLD_EPSILON}, and this one is {target_epsilon:g}"
    if noise_multiplier is not None and float(noise_multiplier) < MIN_PLD_SIGMA:
        return f"PLD needs a noise multiplier of at least {MIN_PLD_SIGMA}, and this job's would be {noise_multiplier}"
    return ""
