"""What grows with the number of workers and of trained numbers: tables, pictures and JSON.

    .venv/bin/python -m benchmarks.growth [--parts workers dimension masks] [--pictures docs/pictures]

- `workers`: a step with 1 to 16 workers, a fixed batch and a fixed number of trained numbers.
- `dimension`: a step of four workers over the number of trained numbers.
- `masks`: masks, tags and key agreement of one worker in groups of up to 1,000 workers, by `benchmarks.masks`.

The first two parts run whole jobs, whose workers share the cores of this machine (`growth.steps`). So the tables show
CPU time, which a worker needs on a core of its own as well. Transfers over a network are not included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers.utils import logging

from benchmarks import masks
from benchmarks.command import option_parser
from benchmarks.growth import pictures, steps
from benchmarks.growth.steps import PARTS, StepCost

WORKERS, RANK = (1, 2, 4, 8, 12, 16), 64
FIXED_WORKERS, RANKS = 4, (1, 4, 16, 64, 256)
SIMULATED = (2, 16, 33, 64, 128, 256, 512, 1000)


def grow_workers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A step over the number of workers."""
    counts, rank = ((1, 2), 1) if options.short else (WORKERS, RANK)
    print(f"\nA step of {steps.BATCH} records over the number of workers, {steps.dimension(rank):,} trained numbers:")
    found = _step_table([(count, rank) for count in counts], options)
    title = f"A step of {steps.BATCH} records, {found[0].dimension / 1e6:.1f} million trained numbers"
    pictures.draw(options.pictures / "growth-workers.svg", title, "workers", counts, _lines(found))
    return [asdict(cost) for cost in found]


def grow_dimension(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A step over the number of trained numbers."""
    workers, ranks = (2, (2,)) if options.short else (FIXED_WORKERS, RANKS)
    print(f"\nA step of {steps.BATCH} records over the number of trained numbers, {workers} workers:")
    found = _step_table([(workers, rank) for rank in ranks], options)
    title = f"A step of {steps.BATCH} records, {workers} workers"
    numbers = [cost.dimension for cost in found]
    pictures.draw(options.pictures / "growth-dimension.svg", title, "trained numbers", numbers, _lines(found))
    return [asdict(cost) for cost in found]


def grow_masks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Masks, tags and key agreement over the number of workers."""
    counts, dimension, repeats = ((2, 1000), 1000, 1) if options.short else (SIMULATED, 1_000_000, 5)
    print(f"\nOne worker's work for secure aggregation, {dimension:,} trained numbers:\n{masks.HEADER}")
    found = []
    for count in counts:
        found.append(masks.measure(count, dimension, repeats))
        print(found[-1].row(), flush=True)
    lines = {
        "masks": [cost.masks for cost in found],
        "masks of a\ncomplete graph": [cost.complete for cost in found],
        "key agreement,\nonce at the start": [cost.start for cost in found],
        "tags": [cost.tags for cost in found],
    }
    title = f"Secure aggregation, {dimension:,} trained numbers"
    pictures.draw(
        options.pictures / "growth-masks.svg",
        title,
        "workers (simulated)",
        counts,
        lines,
        "CPU time of one worker (ms)",
    )
    return [asdict(cost) for cost in found]


MEASURED: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "workers": grow_workers,
    "dimension": grow_dimension,
    "masks": grow_masks,
}


def _step_table(settings: list[tuple[int, int]], options: argparse.Namespace) -> list[StepCost]:
    """Measure each (workers, rank), and print a row for it at once."""
    print("| workers | trained numbers | gradients | noise | masks | rest | without the gradients | time of a step |")
    print("|---|---|---|---|---|---|---|---|")
    found = []
    for workers, rank in settings:
        cost = steps.measure(workers, rank, 1 if options.short else options.steps)
        found.append(cost)
        times = " | ".join(f"{cost.milliseconds[part]:,.1f} ms" for part in PARTS)
        print(f"| {workers} | {cost.dimension:,} | {times} | {cost.added:,.1f} ms | {cost.wall:,.0f} ms |", flush=True)
    return found


def _lines(found: list[StepCost]) -> dict[str, list[float]]:
    """The lines of a picture. A single worker has no masks, but its line needs a number above 0."""
    names = {"gradients": "gradients", "noise": "noise", "masks": "masks", "rest": "sum, verification,\nthe rest"}
    return {label: [max(cost.milliseconds[part], 0.1) for cost in found] for part, label in names.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = option_parser("growth", "What grows with the number of workers and of trained numbers.")
    parser.add_argument(
        "--parts", nargs="+", choices=MEASURED, default=list(MEASURED), help="what to measure (default: all)"
    )
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each job (default 5)")
    parser.add_argument(
        "--short", action="store_true", help="small sizes: shows that it runs, the figures mean nothing"
    )
    parser.add_argument("--pictures", type=Path, default=Path("out/growth"), help="folder of the pictures")
    parser.add_argument("--json", type=Path, default=Path("out/growth.json"), help="file of all figures")
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, load average {load:.2f} before the start: above 1, other work disturbs the figures."
    )
    found: dict[str, Any] = {"cores": os.cpu_count(), "load": load}
    for part in options.parts:
        found[part] = MEASURED[part](options)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nwritten: {options.json} and the pictures in {options.pictures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
