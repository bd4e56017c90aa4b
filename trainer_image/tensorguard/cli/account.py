"""`tensafe account`: the privacy of a number of steps, without a manifest.

In: q, T, δ and either σ or a target ε. Out: ε, or the least σ that keeps the target with the ε that it comes to.
Every figure is `tensafe_api.accounting`'s, the same that a job's ledger is read with.
"""

from __future__ import annotations

import argparse
import json
import math

from tensorguard.cli.arguments import Verbs, open_fraction, positive, probability, sensible_sigma, whole
from tensorguard.cli.exit_codes import SUCCEEDED, Refused

_EPILOG = """\
examples:
  What do 2,250 steps cost, when each record joins a step with probability 4 % and σ is 1.5?
    tensafe account --noise-multiplier 1.5 --sample-rate 0.04 --steps 2250 --delta 1e-5

  How much noise do 81 steps of 512 out of 6,920 records need to stay within ε = 8?
    tensafe account --target-epsilon 8 --sample-rate 512/6920 --steps 81 --delta 1e-5

Assumed are Poisson sampling (each unit joins each step independently) and neighbours that differ by adding or removing
one unit. RDP is what jobs are held to by default; PLD is tighter and slower.
"""


def add(verbs: Verbs) -> None:
    """Describe the verb to the command line."""
    parser = verbs.add_parser(
        "account",
        help="ε of a noise multiplier, or the noise multiplier for an ε",
        description="ε of a number of steps with a noise multiplier, or the noise multiplier that an ε needs.",
        epilog=_EPILOG,
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--noise-multiplier",
        metavar="σ",
        type=sensible_sigma,
        help="standard deviation of the noise over the clip norm",
    )
    given.add_argument(
        "--target-epsilon", metavar="ε", type=positive, help="find the least noise multiplier for this ε instead"
    )
    parser.add_argument(
        "--sample-rate",
        metavar="q",
        type=probability,
        required=True,
        help="probability of joining a step, as 0.04 or 512/6920",
    )
    parser.add_argument("--steps", metavar="T", type=whole, required=True, help="number of steps")
    parser.add_argument("--delta", metavar="δ", type=open_fraction, required=True, help="the δ of (ε, δ), as 1e-5")
    parser.add_argument(
        "--accountant",
        metavar="NAME",
        type=str.upper,
        choices=("RDP", "PLD"),
        default="RDP",
        help="rdp (default) or pld",
    )
    parser.add_argument(
        "-o", dest="output", choices=("text", "json"), default="text", help="text (default), or json in full precision"
    )
    parser.set_defaults(act=_account)


def _account(arguments: argparse.Namespace) -> int:
    from tensafe_api import accounting
    from tensafe_api.privacy_events import round_up

    sampled = {
        "sample_rate": arguments.sample_rate,
        "steps": arguments.steps,
        "delta": arguments.delta,
        "accountant": arguments.accountant,
    }
    sigma = arguments.noise_multiplier
    try:
        if sigma is None:
            if arguments.steps == 0:
                raise Refused(
                    "tensafe account: --steps must be at least 1 with --target-epsilon, since no step needs no noise"
                )
            sigma = float(accounting.calibrate(target_epsilon=arguments.target_epsilon, **sampled))
        epsilon = accounting.epsilon(noise_multiplier=sigma, **sampled)
    except accounting.CalibrationError as error:
        raise Refused(f"tensafe account: {error}; raise --target-epsilon, or lower --steps or --sample-rate") from error
    except (OverflowError, ZeroDivisionError):
        epsilon = math.inf
    if not math.isfinite(epsilon) and arguments.accountant == "PLD" and arguments.delta < accounting.MIN_PLD_DELTA:
        raise Refused(
            "tensafe account: --accountant pld is computed by FFT, whose rounding counts at a δ of "
            f"{arguments.delta:g}: take rdp, or a δ of {accounting.MIN_PLD_DELTA:g} or more"
        )
    if not math.isfinite(epsilon):
        raise Refused(f"tensafe account: --noise-multiplier {sigma:g} gives no finite ε for these steps; raise it")

    if arguments.output == "json":
        figures = {
            "epsilon": epsilon,
            "noiseMultiplier": sigma,
            "accountant": arguments.accountant,
            "delta": arguments.delta,
        }
        print(json.dumps({**figures, "sampleRate": arguments.sample_rate, "steps": arguments.steps}, indent=2))
        return SUCCEEDED
    from tensorguard.cli.tables import facts

    found = "the least that keeps the target" if arguments.noise_multiplier is None else ""
    target = f", target {arguments.target_epsilon:g}" if arguments.target_epsilon else ""
    facts(
        [
            ("ε", round_up(epsilon, 5), f"rounded up{target}"),
            ("δ", f"{arguments.delta:g}", ""),
            ("noise multiplier σ", f"{sigma:.10g}", found),
            ("sample rate q", f"{arguments.sample_rate:.10g}", ""),
            ("steps", f"{arguments.steps:,}", ""),
            ("accountant", arguments.accountant, "Poisson sampling, add or remove one unit"),
        ]
    )
    return SUCCEEDED
