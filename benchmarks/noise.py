"""Noise multipliers by three accountants: RDP, PLD (TenSafe's default) and PRV (Opacus' default).

    .venv/bin/python -m benchmarks.noise

A sampling rate, a number of steps, δ and ε come in. The smallest σ that keeps ε goes out, by each accountant. Opacus
stops its search once ε is within 0.01 of the target. Here it searches to 0.001, so that the figure is one of PRV and
not of the search.
"""

from __future__ import annotations

import sys
import warnings

from opacus.accountants.utils import get_noise_multiplier

from benchmarks.command import option_parser
from tensafe_api.accounting import composition
from tensafe_api.accounting.calibration import calibrate

SETTINGS = (
    # sampling rate, steps, δ, ε
    (0.08, 32, "2.5e-5", 8.0),  # the quickstart
    (512 / 6920, 81, "1e-5", 8.0),  # six epochs of SST-2
    (512 / 6920, 81, "1e-5", 3.0),
    (512 / 6920, 81, "1e-5", 1.0),
    (2048 / 6920, 20, "1e-5", 8.0),
    (0.0085, 2000, "1e-6", 3.0),
    (0.001, 10_000, "1e-7", 2.0),
    (0.5, 100, "1e-5", 5.0),
)
MAX_DIFFERENCE = 0.002


def main() -> int:
    """Run the command line. The exit status is 1 if PLD's σ differs from PRV's by more than 0.2 % in a setting."""
    parser = option_parser("noise", "Noise multipliers by RDP, PLD and Opacus' PRV.")
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="the first so many settings (default: all)")
    settings = SETTINGS[: parser.parse_args().settings]
    warnings.filterwarnings("ignore", module="opacus")
    print("sampling rate  steps  delta   epsilon  RDP       PLD       PRV       PLD / PRV")
    smallest, largest = 1.0, -1.0
    for rate, steps, delta, epsilon in settings:
        by_rdp, by_pld = (
            float(
                calibrate(
                    target_epsilon=epsilon,
                    sample_rate=rate,
                    steps=steps,
                    delta=composition.job_delta(delta),
                    accountant=accountant,
                )
            )
            for accountant in ("RDP", "PLD")
        )
        by_prv = get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=float(delta),
            sample_rate=rate,
            steps=steps,
            accountant="prv",
            epsilon_tolerance=0.001,
            eps_error=0.001,
        )
        smallest, largest = min(smallest, by_pld / by_prv - 1), max(largest, by_pld / by_prv - 1)
        print(
            f"{rate:<13.4g}  {steps:<5}  {delta:<6}  {epsilon:<7g}  {by_rdp:<8.6f}  {by_pld:<8.6f}  {by_prv:<8.6f}"
            f"  {by_pld / by_prv:.5f}",
            flush=True,
        )
    print(f"PLD needs {100 * smallest:+.3f} % to {100 * largest:+.3f} % of noise compared with PRV")
    return int(max(largest, -smallest) > MAX_DIFFERENCE)


if __name__ == "__main__":
    sys.exit(main())
