"""`tensafe validate`: is this manifest right, and what does it come to?

In: a manifest. Out: every problem at once on standard error, or the figures that it resolves to and the manifest with
every default written out. Nothing is read but the manifest: whether the data and the model are there shows when the
job runs.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tensorguard.cli.arguments import Verbs, add_manifest
from tensorguard.cli.exit_codes import SUCCEEDED

if TYPE_CHECKING:
    from tensafe_api.resolve import Plan
    from tensorguard.cli.tables import Row

_EPILOG = """\
examples:
  tensafe validate job.yaml
  tensafe validate job.yaml --set spec.privacy.targetEpsilon=4     what would half the budget come to?
  tensafe validate job.yaml -o yaml > completed.yaml               the manifest with every default written out

Exit codes: 0 right, 2 wrong (every problem is named, with its field and the mend).
"""


def add(verbs: Verbs) -> None:
    """Describe the verb to the command line."""
    parser = verbs.add_parser(
        "validate",
        help="check a manifest and show what it comes to",
        description="Check a manifest and show everything that it comes to. Nothing is run, no data is read.",
        epilog=_EPILOG,
    )
    add_manifest(parser)
    parser.add_argument(
        "-o",
        dest="output",
        choices=("text", "yaml", "json"),
        default="text",
        help="text (default), or only the completed manifest as yaml or json",
    )
    parser.set_defaults(act=_validate)


def _validate(arguments: argparse.Namespace) -> int:
    from tensafe_api.manifest import dump_manifest
    from tensorguard.cli.job_loading import load, no_room, warnings

    loaded = load(arguments.manifest, arguments.overrides)
    for warning in (*warnings(loaded), *no_room(loaded)):
        print(f"warning: {warning}", file=sys.stderr)
    if arguments.output != "text":
        print(dump_manifest(loaded.completed, arguments.output), end="")
        return SUCCEEDED

    from tensorguard.cli.tables import facts

    facts(_privacy(loaded.plan, calibrated=loaded.job.spec.privacy.noise_multiplier is None), "Privacy")
    print()
    facts(_training(loaded.plan, evaluates=loaded.job.spec.evaluation is not None), "Training")
    print("\nThe manifest with every default:\n")
    print(dump_manifest(loaded.completed, "yaml"), end="")
    return SUCCEEDED


def _privacy(plan: Plan, *, calibrated: bool) -> list[Row]:
    from tensafe_api.accounting import format_epsilon, outsider_epsilon

    mechanism = plan.mechanism
    outsider = outsider_epsilon(mechanism, plan.steps, plan.delta, plan.accountant)
    total = plan.steps + plan.reserve_steps
    within = plan.affordable_steps(0, total)
    reserve = f"when all {plan.reserve_steps:,} reserved steps are charged as well"
    origin = f"calibrated for {total:,} steps" if calibrated else "as written"
    colluders = (
        f"what stands when {mechanism.colluders} of {mechanism.workers} workers collude"
        if mechanism.colluders
        else "nobody colludes"
    )
    return [
        (
            "ε claimed",
            format_epsilon(plan.epsilon_claimed(0)),
            f"of the {plan.steps:,} planned steps; target {plan.target_epsilon:g}",
        ),
        (
            "ε with the reserve",
            format_epsilon(plan.epsilon(within)),
            reserve if within == total else f"the budget ends after {within:,} steps",
        ),
        ("ε against an outsider", format_epsilon(outsider), "of the planned steps, against who is no worker"),
        ("δ", plan.delta, ""),
        ("unit", mechanism.unit, "neighbours: add or remove one"),
        ("noise multiplier σ", mechanism.noise_multiplier, f"{origin}; {colluders}"),
        ("sample rate q", mechanism.sample_rate, "chance of a unit to join a step"),
        ("clip norm C", mechanism.clip, f"is 2^{mechanism.grid_bits} steps of the integer grid"),
        ("accountant", plan.accountant, ""),
    ]


def _training(plan: Plan, *, evaluates: bool) -> list[Row]:
    evaluation = [("evaluation", _every(plan.evaluate_every), "and at the end")] if evaluates else []
    return [
        ("steps", f"{plan.steps:,}", f"{plan.steps_per_epoch:,} an epoch, {plan.warmup_steps:,} of warm-up"),
        ("expected batch", f"{plan.mechanism.expected_batch_size:,}", "units in a step, on average"),
        ("checkpoint", _every(plan.checkpoint_every), "and at the end"),
        *evaluation,
        ("charged in advance", f"{plan.chunk_steps:,}", "steps at a time; a crash costs at most these"),
        ("workers", f"{plan.mechanism.workers:,}", ""),
    ]


def _every(steps: int) -> str:
    return "every step" if steps == 1 else f"every {steps:,} steps"
