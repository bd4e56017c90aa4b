"""Time and peak memory of one step: TenSafe beside Opacus' hooks and ghost clipping, in one run.

    .venv/bin/python -m benchmarks.step

All take a step of the same 512 sentences of SST-2 (those of more than 16 tokens, so that all have the same 32-token
shape everywhere), MiniLM with LoRA on its top two layers. Ratios are what counts: to the non-private step of the same
trainer, and of TenSafe's private step to Opacus' hooks. The ways take turns, a few rounds of them, and the best round
of each counts: a shared machine only ever adds time.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import corpora, tensafe_step
from benchmarks.peers import opacus_step
from benchmarks.peers.opacus_step import StepCost


def best(rounds: list[StepCost]) -> StepCost:
    """The fastest of several measurements of one way."""
    return min(rounds, key=lambda cost: cost.seconds)


def main() -> int:
    """The command line; exit status 0 also where SST-2 is absent and the run is skipped."""
    parser = argparse.ArgumentParser(description="Time and memory of one step, TenSafe beside Opacus.")
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of the ways with one process (default 2)")
    options = parser.parse_args()
    try:
        corpora.sst2("train")
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    settings = {"micro_batch": options.micro_batch, "repeats": options.repeats, "threads": options.threads}
    found: dict[str, list[StepCost]] = {}
    for _ in range(options.rounds):
        for way in tensafe_step.WAYS:
            found.setdefault(f"tensafe-{way}", []).append(tensafe_step.measure(way, **settings))
        for way in opacus_step.WAYS:
            found.setdefault(f"opacus-{way}", []).append(opacus_step.measure(way, **settings))
    costs = {way: best(rounds) for way, rounds in found.items()}
    print(f"{'way':16} {'seconds':>8} {'of own plain':>13} {'of opacus-hooks':>16} {'peak MiB':>9}")
    for way, cost in costs.items():
        own = cost.seconds / costs[f"{way.split('-')[0]}-plain"].seconds
        hooks = cost.seconds / costs["opacus-hooks"].seconds
        print(f"{way:16} {cost.seconds:8.3f} {own:12.3f}x {hooks:15.3f}x {cost.peak_mib:9.0f}", flush=True)
    guarded, bare = tensafe_step.overhead(options.micro_batch, 2 * options.repeats)
    print(f"two workers: {guarded:.3f} s with masks and verification, {bare:.3f} s without: {guarded / bare - 1:+.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
