"""`tensafe account`: the privacy of a number of steps, without a manifest.

In: q, T, δ and either σ or a target ε. Out: ε; or the smallest σ that keeps the target, with its ε. All figures are
computed by `tensafe_api.accounting.composition`, which also computes those of a job's ledger.
"""

from __future__ import annotations

import argparse
import json
import math

from tensorguard.cli.arguments import Subparsers, delta, noise_multiplier, positive, probability, whole_number
from tensorguard.cli.exit_codes import SUCCEEDED, CommandError

_EPILOG = """\
examples:
  What do 2,250 steps cost, when each record joins a step with probability 4 % and σ is 1.5?
    tensafe account --noise-multiplier 1.5 --sample-rate 0.04 --steps 2250 --delta 1e-5

  How much noise do 81 steps of 512 out of 6,920 records need to stay within ε = 8?
    tensafe account --target-epsilon 8 --sample-rate 512/6920 --steps 81 --delta 1e-5

  The same with the RDP accountant, as JSON for a script:
    tensafe account --target-epsilon 8 --sample-rate 512/6920 --steps 81 --delta 1e-5 --accountant rdp -o json

The figures assume Poisson sampling (each unit joins each step independently), and neighbouring data sets that differ by
one unit, added or removed, or zeroed out. The default accountant is that of jobs: PLD, or RDP where PLD would be too
slow or too inexact, which is above 20,000 steps or ε = 20, below σ = 0.3, and below δ = 1e-8.

Exit codes: 0 computed, 2 invalid arguments, or no noise multiplier keeps the target.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "account",
        help="compute ε from a noise multiplier, or the noise multiplier from ε",
        description="Compute the ε of a number of steps from the noise multiplier, or the smallest noise multiplier\n"
        "that keeps a target ε. Neither a manifest nor data is read.",
        epilog=_EPILOG,
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--noise-multiplier",
        metavar="σ",
        type=noise_multiplier,
        help="standard deviation of the noise divided by the clip norm: compute its ε",
    )
    given.add_argument(
        "--target-epsilon", metavar="ε", type=positive, help="compute the smallest noise multiplier that keeps this ε"
    )
    parser.add_argument(
        "--sample-rate",
        metavar="q",
        type=probability,
        required=True,
        help="probability that a unit joins a step: 0.04, or batch size/units as 512/6920",
    )
    parser.add_argument("--steps", metavar="T", type=whole_number, required=True, help="number of training steps")
    parser.add_argument("--delta", metavar="δ", type=delta, required=True, help="the δ of (ε, δ), such as 1e-5")
    parser.add_argument(
        "--accountant",
        metavar="NAME",
        type=str.upper,
        choices=("PLD", "RDP"),
        help="pld (default), or rdp: needs more noise for the same ε",
    )
    parser.add_argument(
        "-o", dest="output", choices=("text", "json"), default="text", help="text (default), or json in full precision"
    )
    parser.set_defaults(handler=_account)


def _account(arguments: argparse.Namespace) -> int:
    from tensafe_api.accounting import accountant_choice, composition
    from tensafe_api.accounting.calibration import CalibrationError
    from tensafe_api.resources.mechanism import round_up

    sampled = {"sample_rate": arguments.sample_rate, "steps": arguments.steps, "delta": arguments.delta}
    sigma = arguments.noise_multiplier
    if sigma is None and arguments.steps == 0:
        raise CommandError(
            "tensafe account: --steps is 0, and no steps need no noise: with --target-epsilon write at least 1"
        )
    accountant = arguments.accountant or "RDP"
    try:
        target = arguments.target_epsilon or composition.epsilon(noise_multiplier=sigma, **sampled)
        accountant, found = accountant_choice.choose(
            arguments.accountant, None if sigma is None else str(sigma), target_epsilon=target, **sampled
        )
        sigma = float(found)
        epsilon = composition.epsilon(noise_multiplier=sigma, accountant=accountant, **sampled)
    except accountant_choice.PLDLimitError as error:
        raise CommandError(f"tensafe account: --accountant pld: {error}: use rdp") from error
    except CalibrationError as error:
        raise CommandError(
            f"tensafe account: {error}; raise --target-epsilon, or lower --steps or --sample-rate"
        ) from error
    except (OverflowError, ZeroDivisionError):
        epsilon = math.inf
    if not math.isfinite(epsilon):
        raise CommandError(f"tensafe account: --noise-multiplier {sigma:g} gives no finite ε for these steps: raise it")

    if arguments.output == "json":
        figures = {
            "epsilon": epsilon,
            "noiseMultiplier": sigma,
            "accountant": accountant,
            "delta": arguments.delta,
        }
        print(json.dumps({**figures, "sampleRate": arguments.sample_rate, "steps": arguments.steps}, indent=2))
        return SUCCEEDED
    from tensorguard.cli.tables import print_facts

    found = "the smallest that keeps the target" if arguments.noise_multiplier is None else ""
    target = f", target {arguments.target_epsilon:g}" if arguments.target_epsilon else ""
    print_facts(
        [
            ("ε", round_up(epsilon, 5), f"rounded up{target}"),
            ("δ", f"{arguments.delta:g}", ""),
            ("noise multiplier σ", f"{sigma:.10g}", found),
            ("sample rate q", f"{arguments.sample_rate:.10g}", ""),
            ("steps", f"{arguments.steps:,}", ""),
            ("accountant", accountant, "Poisson sampling; add or remove one unit, or zero it out"),
        ]
    )
    return SUCCEEDED
