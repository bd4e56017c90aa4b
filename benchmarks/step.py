"""Time and peak memory of one step: TenSafe, and Opacus with hooks and with ghost clipping, in one run.

    .venv/bin/python -m benchmarks.step

Each variant takes a step on the same 512 sentences of SST-2 and trains MiniLM with LoRA on its top two layers. The
sentences have more than 16 tokens, so that all variants compute them in the shape of 32 tokens. The ratios matter: to
the non-private step of the same trainer, and of TenSafe's private step to Opacus' hooks. The variants alternate for a
few rounds, and the fastest round of each counts, since other work on the machine can only add time.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import corpora, tensafe_step
from benchmarks.peers import opacus_step
from benchmarks.peers.opacus_step import StepCost


def best(rounds: list[StepCost]) -> StepCost:
    """The fastest of several measurements of one variant."""
    return min(rounds, key=lambda cost: cost.seconds)


def main() -> int:
    """Run the command line. The exit status is 0, and nothing runs, where SST-2 is absent."""
    parser = argparse.ArgumentParser(description="Time and memory of one step, TenSafe and Opacus.")
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=2, help="CPU threads of the variants with one process (default 2)"
    )
    options = parser.parse_args()
    try:
        corpora.sst2("train")
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    settings = {"micro_batch": options.micro_batch, "repeats": options.repeats, "threads": options.threads}
    found: dict[str, list[StepCost]] = {}
    for _ in range(options.rounds):
        for variant in tensafe_step.VARIANTS:
            found.setdefault(f"tensafe-{variant}", []).append(tensafe_step.measure(variant, **settings))
        for variant in opacus_step.VARIANTS:
            found.setdefault(f"opacus-{variant}", []).append(opacus_step.measure(variant, **settings))
    costs = {variant: best(rounds) for variant, rounds in found.items()}
    print(f"{'variant':16} {'seconds':>8} {'of own plain':>13} {'of opacus-hooks':>16} {'peak MiB':>9}")
    for variant, cost in costs.items():
        own = cost.seconds / costs[f"{variant.split('-')[0]}-plain"].seconds
        hooks = cost.seconds / costs["opacus-hooks"].seconds
        print(f"{variant:16} {cost.seconds:8.3f} {own:12.3f}x {hooks:15.3f}x {cost.peak_mib:9.0f}", flush=True)
    masked, unmasked = tensafe_step.overhead(options.micro_batch, 2 * options.repeats)
    change = masked / unmasked - 1
    print(f"two workers: {masked:.3f} s with masks and verification, {unmasked:.3f} s without: {change:+.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
