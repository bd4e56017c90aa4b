"""`tensafe plan`: what other numbers of steps and batches would cost, and the memory that a worker needs.

In: a manifest. Out: a table of pairs of steps and expected batch with their noise, on request a picture, and the memory
of a worker. The figures are those of `tensafe_api.step_choices` and `tensorguard.models.memory`; nothing is run, and
neither data nor weights are read.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorguard.cli.arguments import Subparsers, add_manifest_arguments, memory_size
from tensorguard.cli.exit_codes import FAILED, SUCCEEDED, CommandError
from tensorguard.cli.pictures import INK, PRIVACY, new_figure, style

if TYPE_CHECKING:
    from tensafe_api.step_choices import Choice
    from tensorguard.cli.job_loading import LoadedJob
    from tensorguard.cli.plan_memory import WorkerMemory

_EPILOG = """\
examples:
  tensafe plan job.yaml                               pairs of steps and batch that take as long as the job's, and the
                                                      memory of a worker
  tensafe plan job.yaml --gpu-memory 24Gi             whether a worker fits on a GPU of this size
  tensafe plan job.yaml --plot plan.png               the pairs as a picture
  tensafe plan job.yaml --set spec.training.epochs=6  for twice the training time of three epochs
  tensafe plan job.yaml -o json | jq '.choices[] | [.steps, .noise]'
                                                      for a script

Every pair computes about the same number of example gradients, and keeps the same ε. A larger batch has less noise
relative to what the weights can learn, until there are too few steps. The best learning rate differs: try it
on public data.

The memory is that of the longest records. Of the model, only the config and the tokenizer are read, from the hub if
they are not on this machine. Without them the memory is not shown.

Exit codes: 0 computed; 1 the picture cannot be written, or a worker does not fit on a GPU with --gpu-memory, or this is
not known; 2 invalid manifest or arguments.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "plan",
        help="compare numbers of steps and batches by their noise, and estimate the memory of a worker",
        description="Show pairs of steps and expected batch that take as long as those of the manifest, with the\n"
        "noise that each needs for the same ε, and the memory that a worker needs. Nothing is run, and\n"
        "neither data nor weights are read.",
        epilog=_EPILOG,
    )
    add_manifest_arguments(parser)
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="also draw the noise over the batch")
    parser.add_argument(
        "--gpu-memory",
        metavar="SIZE",
        type=memory_size,
        help="memory of a GPU, such as 24Gi: show whether a worker fits on it, and what to change if not",
    )
    parser.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="text (default) or json")
    parser.set_defaults(handler=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from tensafe_api.step_choices import choices, proposed
    from tensorguard.cli.job_loading import load_job

    loaded = load_job(arguments.manifest, arguments.overrides)
    job = loaded.job
    found = []
    for choice in choices(job):
        found.append(choice)
        _show(f"computing the noise of {len(found)} pairs ...")
    _show("")
    if arguments.output == "text":
        _print(found)
        if best := proposed(found):
            changes = [*arguments.overrides, f"spec.training.expectedBatchSize={best.batch}"]
            if job.spec.training.steps is not None:  # otherwise they follow from the epochs
                changes.append(f"spec.training.steps={best.plan.steps}")
            command = [
                "tensafe",
                "run",
                arguments.manifest,
                *(part for change in changes for part in ("--set", change)),
            ]
            print(f"To try less noise:\n  {shlex.join(command)}")
    memory = _memory(loaded, arguments)
    if arguments.output == "json":
        figures = [_figures(choice) for choice in found]
        print(json.dumps({"choices": figures, "memory": memory and memory.figures()}, indent=2))
    if arguments.plot is not None:
        try:
            _draw(found, job.metadata.name, arguments.plot)
        except (OSError, ValueError) as error:  # ValueError: an ending that is no picture format
            reason = getattr(error, "strerror", None) or error
            raise CommandError(f"tensafe plan: --plot {arguments.plot}: {reason}", exit_code=1) from error
    fits = memory is not None and memory.fits
    return SUCCEEDED if fits or arguments.gpu_memory is None else FAILED


def _memory(loaded: LoadedJob, arguments: argparse.Namespace) -> WorkerMemory | None:
    """Estimate the memory of a worker and print it, if text is wanted. None if the model's files cannot be read."""
    from tensorguard.cli.plan_memory import print_frozen, print_memory, worker_memory

    sys.stdout.flush()  # the next lines take some seconds, or half a minute where changes are searched
    _show("estimating the memory of a worker ...")
    try:
        memory = worker_memory(loaded, Path(arguments.manifest).absolute().parent, arguments.gpu_memory)
    except (ImportError, OSError, ValueError) as error:
        _show("")
        print(f"the memory of a worker is not estimated: {error}", file=sys.stderr)
        return None
    _show("")
    if arguments.output == "text":
        print()
        print_memory(memory)
        print_frozen(memory, loaded.plan.passes)
    for warning in memory.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    return memory


def _show(text: str) -> None:
    """Show what is being done, in place of what was shown before, if the error output is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _figures(choice: Choice) -> dict[str, object]:
    mechanism = choice.plan.mechanism
    return {
        "steps": choice.plan.steps,
        "expectedBatchSize": choice.batch,
        "own": choice.own,
        "epochs": choice.plan.steps * float(mechanism.sample_rate),
        "noiseMultiplier": float(mechanism.noise_multiplier),
        "accountant": choice.plan.accountant,
        "epsilon": choice.plan.epsilon_claimed(0),
        "noiseOfAStep": choice.noise_of_a_step,
        "noise": choice.noise,
    }


def _print(found: Sequence[Choice]) -> None:
    from tensorguard.cli.tables import print_table

    own = next(choice for choice in found if choice.own)
    print_table(
        ("steps", "batch", "noise multiplier σ", "noise of a step", "relative noise", ""),
        [
            (
                f"{choice.plan.steps:,}",
                f"{choice.batch:,}",
                choice.plan.mechanism.noise_multiplier,
                f"{choice.noise_of_a_step:.6f}",
                f"{choice.noise / own.noise:.2f}",
                "as in the manifest" if choice.own else "",
            )
            for choice in found
        ],
    )
    epochs = own.plan.steps * float(own.plan.mechanism.sample_rate)
    print(
        f"\nEach row computes about {own.plan.steps * own.batch:,} example gradients ({epochs:.3g} epochs) and keeps "
        f"ε = {own.plan.target_epsilon:g}, δ = {own.plan.delta} ({own.plan.accountant}).\n"
        "Noise of a step: σ / batch, in clip norms. Relative noise: σ / (batch × √steps), 1 for the manifest; "
        "lower is better, until there are too few steps to learn."
    )


def _draw(found: Sequence[Choice], name: str, path: Path) -> None:
    """Write the picture. Raises OSError or ValueError if it cannot be written."""
    own = next(choice for choice in found if choice.own)
    batches, noise = [choice.batch for choice in found], [choice.noise / own.noise for choice in found]
    figure, (panel,) = new_figure(7, 4)
    panel.set_xscale("log", base=2)
    panel.plot(batches, noise, "o-", color=PRIVACY, linewidth=2, markersize=6, zorder=3)
    panel.plot(own.batch, 1.0, "o", color="white", markeredgecolor=PRIVACY, markersize=11, markeredgewidth=2, zorder=2)
    for choice, value in zip(found, noise):
        steps = f"{choice.plan.steps:,} steps" + ("\n(manifest)" if choice.own else "")
        # The line falls to the right, so there is room above it on that side.
        panel.annotate(steps, (choice.batch, value), (3, 8), textcoords="offset points", fontsize=8.5, color=INK)
    panel.set_xticks(batches, [f"{batch:,}" for batch in batches])
    panel.minorticks_off()
    panel.set_ylim(0, max(noise) * 1.25)
    panel.margins(x=0.13)
    panel.set_xlabel("expected batch")
    panel.set_ylabel("relative noise")
    panel.set_title(
        f"{name}: {own.plan.steps * own.batch:,} example gradients, ε = {own.plan.target_epsilon:g}",
        loc="left",
        color=INK,
        fontsize=11,
    )
    style(panel)
    figure.savefig(path)
