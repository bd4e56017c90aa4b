"""Time and peak memory of one step: TenSafe, and Opacus with hooks and with ghost clipping, in one run.

    .venv/bin/python -m benchmarks.step

Each variant takes a step on the same 512 sentences of SST-2 and trains MiniLM with LoRA on its top two layers. The
sentences have more than 16 tokens, so that all variants compute them in the shape of 32 tokens. The ratios matter: to
the non-private step of the same trainer, and of TenSafe's private step to Opacus' hooks. The variants take turns for a
few rounds, each in a new process. A ratio compares two runs of one round. Its median over the rounds is printed, with
the smallest and the largest. Nothing else should run on the machine.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import corpora, tensafe_step
from benchmarks.command import option_parser
from benchmarks.peers import opacus_step
from benchmarks.peers.opacus_step import StepCost


def spread(values: Sequence[float], form: str) -> str:
    """The median of ``values`` with the smallest and the largest, each formatted by ``form``."""
    return f"{format(statistics.median(values), form)} ({format(min(values), form)} to {format(max(values), form)})"


def table(rounds: Sequence[Mapping[str, StepCost]]) -> Iterator[str]:
    """Yield the lines of the result; each round has one cost for each variant, by its name."""
    yield f"{'variant':16} {'seconds':>23} {'of own plain':>23} {'of opacus-hooks':>23} {'peak MiB':>9}"
    for variant in rounds[0]:
        plain = f"{variant.split('-')[0]}-plain"
        seconds = spread([found[variant].seconds for found in rounds], ".3f")
        own = spread([found[variant].seconds / found[plain].seconds for found in rounds], ".3f")
        hooks = spread([found[variant].seconds / found["opacus-hooks"].seconds for found in rounds], ".3f")
        peak = statistics.median(found[variant].peak_mib for found in rounds)
        yield f"{variant:16} {seconds:>23} {own:>23} {hooks:>23} {peak:9.0f}"


def main() -> int:
    """Run the command line. The exit status is 0, and nothing runs, where SST-2 is absent."""
    parser = option_parser("step", "Time and memory of one step, TenSafe and Opacus.")
    parser.add_argument("--micro-batch", type=int, default=64, help="records at once (default 64)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps of a variant in each round (default 5)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in which the variants take turns (default 5)")
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
    rounds = []
    for number in range(options.rounds):
        found = {f"tensafe-{name}": tensafe_step.measure(name, **settings) for name in tensafe_step.VARIANTS}
        found |= {f"opacus-{name}": opacus_step.measure(name, **settings) for name in opacus_step.VARIANTS}
        rounds.append(found)
        print(f"round {number + 1}: " + ", ".join(f"{name} {cost.seconds:.3f} s" for name, cost in found.items()))
    print("\n".join(table(rounds)), flush=True)
    fills = [found["tensafe-private"].fill_seconds / found["tensafe-private"].seconds for found in rounds]
    print(f"computing the frozen layers once takes as long as {spread(fills, '.2f')} private steps")
    masked, unmasked = tensafe_step.overhead(options.micro_batch, 2 * options.repeats)
    change = masked / unmasked - 1
    print(f"two workers: {masked:.3f} s with masks and verification, {unmasked:.3f} s without: {change:+.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
