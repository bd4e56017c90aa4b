"""`tensafe validate`: check a manifest, and show the figures that follow from it.

In: a manifest. Out: all faults at once on standard error; or the privacy and training figures, and the manifest with
all defaults. Only the manifest is read: whether the data and the model exist shows when the job runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorguard.cli.arguments import Subparsers, add_manifest_arguments
from tensorguard.cli.exit_codes import SUCCEEDED
from tensorguard.cli.wording import ADJACENCY_TEXT, steps_text

if TYPE_CHECKING:
    from tensafe_api.resolve import Plan
    from tensafe_api.resources.job import Spec
    from tensorguard.cli.tables import Row

_EPILOG = """\
examples:
  tensafe validate job.yaml
  tensafe validate job.yaml --set spec.privacy.targetEpsilon=4     the figures for half the budget
  tensafe validate job.yaml -o yaml > completed.yaml               the manifest with all defaults
  tensafe validate job.yaml -o json | jq .spec.privacy             one block of it, for a script

Exit codes: 0 valid, 2 invalid (each fault is reported with its field and the fix).
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "validate",
        help="check a manifest, and show its ε, noise and number of steps",
        description="Check a manifest, and show the privacy and training figures that follow from it.\n"
        "Nothing is run, and no data is read.",
        epilog=_EPILOG,
    )
    add_manifest_arguments(parser)
    parser.add_argument(
        "-o",
        dest="output",
        choices=("text", "yaml", "json"),
        default="text",
        help="text (default): figures and manifest; yaml or json: only the manifest with all defaults",
    )
    parser.set_defaults(handler=_validate)


def _validate(arguments: argparse.Namespace) -> int:
    from tensafe_api.manifest.text import dump_manifest
    from tensorguard.cli.job_loading import cluster_warnings, load_job, local_warnings, resource_warnings

    loaded = load_job(arguments.manifest, arguments.overrides)
    for warning in (*local_warnings(loaded), *cluster_warnings(loaded), *resource_warnings(loaded)):
        print(f"warning: {warning}", file=sys.stderr)
    if arguments.output != "text":
        print(dump_manifest(loaded.completed, arguments.output), end="")
        return SUCCEEDED

    from tensafe_api.resolve import keeps_states
    from tensorguard.cli.tables import print_facts

    spec, plan = loaded.job.spec, loaded.plan
    print_facts(_privacy(plan, calibrated=spec.privacy.noise_multiplier is None), "Privacy")
    print()
    frozen = _frozen(spec.lora.layers, plan) if keeps_states(spec, plan) else []
    training = _training(plan, evaluates=spec.evaluation is not None)
    print_facts([*training, *_longest_record(loaded.completed.spec), *frozen], "Training")
    print("\nThe manifest with all defaults:\n")
    print(dump_manifest(loaded.completed, "yaml"), end="")
    return SUCCEEDED


def _privacy(plan: Plan, *, calibrated: bool) -> list[Row]:
    from tensafe_api.accounting.composition import format_epsilon

    mechanism = plan.mechanism
    before = plan.mechanism.steps_before
    claimed = steps_text(plan.claimed_steps(0), before=before)
    total = plan.steps + plan.reserve_steps
    within = plan.affordable_steps(0, total)
    reserve = (
        "if the reserved step is charged as well"
        if plan.reserve_steps == 1
        else f"if all {plan.reserve_steps:,} reserved steps are charged as well"
    )
    origin = f"calibrated for {steps_text(total)}" if calibrated else "as in the manifest"
    earlier = "of the trainings in spec.lora.initFrom, which every ε here counts"
    return [
        *([("ε before this job", format_epsilon(plan.epsilon(0)), earlier)] if before else []),
        (
            "ε claimed",
            format_epsilon(plan.epsilon_claimed(0)),
            f"of {claimed} to sign off; target {plan.target_epsilon:g}",
        ),
        (
            "ε with the reserve",
            format_epsilon(plan.epsilon(within)),
            f"of {steps_text(within, before=before)}, {reserve if within == total else 'where the budget ends'}",
        ),
        ("δ", plan.delta, ""),
        ("unit", mechanism.unit, ADJACENCY_TEXT[mechanism.adjacency]),
        ("noise multiplier σ", mechanism.noise_multiplier, origin),
        ("sample rate q", mechanism.sample_rate, "probability that a unit joins a step"),
        ("clip norm C", mechanism.clip, f"2^{mechanism.grid_bits} steps of the integer grid"),
        ("accountant", plan.accountant, _why_rdp(plan)),
    ]


def _why_rdp(plan: Plan) -> str:
    """Why a job with RDP could not have PLD, which needs less noise; empty if it has PLD, or asked for RDP."""
    from tensafe_api.accounting.accountant_choice import limit_of_pld
    from tensafe_api.accounting.composition import job_delta

    if plan.accountant == "PLD":
        return ""
    return limit_of_pld(
        steps=plan.steps + plan.reserve_steps,
        target_epsilon=plan.target_epsilon,
        delta=job_delta(plan.delta),
        noise_multiplier=plan.mechanism.noise_multiplier,
    )


def _training(plan: Plan, *, evaluates: bool) -> list[Row]:
    evaluation = [("evaluation", _every(plan.evaluate_every), "and at the end")] if evaluates else []
    return [
        ("steps", f"{plan.steps:,}", f"{plan.steps_per_epoch:,} in each epoch, {plan.warmup_steps:,} for warm-up"),
        ("expected batch", f"{plan.mechanism.expected_batch_size:,}", "units in a step, on average"),
        (
            "checkpoint",
            _every(plan.checkpoint_every),
            "and at the end; after a crash the steps since the last one are charged again",
        ),
        *evaluation,
        ("charged in advance", steps_text(plan.chunk_steps), "at a time; so many at most are lost in a crash"),
        (
            "reserve",
            steps_text(plan.reserve_steps),
            "that can be charged again; then the run ends before its last step",
        ),
        ("workers", f"{plan.mechanism.workers:,}", "processes, of which each adds a share of the noise"),
    ]


def _longest_record(completed: Spec) -> list[Row]:
    """How many tokens of a record are read; nothing for images."""
    if completed.training.max_length is None:
        return []
    longer = "dropped" if completed.dataset.over_length == "Drop" else "cut"
    read = f"{completed.training.max_length:,} tokens"
    return [("longest record", read, f"longer ones are {longer}; `tensafe inspect` counts them")]


def _frozen(trained: Sequence[int] | None, plan: Plan) -> list[Row]:
    """The layers below the first one that is trained."""
    first = 0 if trained is None else min(trained, default=None)
    if first == 0:
        return []
    layers = "all layers" if first is None else "layer 0" if first == 1 else f"layers 0 to {first - 1}"
    once = f"computed once for each record, not {plan.passes:.3g} times, where no bit changes and the disk is enough"
    return [("frozen", layers, once)]


def _every(steps: int) -> str:
    return "every step" if steps == 1 else f"every {steps_text(steps)}"
