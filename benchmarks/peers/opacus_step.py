"""Time and memory of one training step of 512 examples: without privacy, with Opacus' hooks, with ghost clipping.

The name of a variant comes in, and ``StepCost`` goes out. Each variant runs in a separate process. Otherwise memory
that the allocator keeps from one variant would count for the next. ``benchmarks/step.py`` compares these figures with
TenSafe's. To run this module alone:

    .venv/bin/python -m benchmarks.peers.opacus_step
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks import corpora, memory, minilm
from benchmarks.command import option_parser
from benchmarks.peers.steps import opacus_step, plain_step

BATCH = 512
MAX_LENGTH = 32
VARIANTS = ("plain", "hooks", "ghost")


@dataclass(frozen=True)
class StepCost:
    """What a step costs.

    Attributes:
        seconds: median of a step.
        peak_mib: how far memory rose above the loaded model in any step.
        fill_seconds: to compute what is frozen once, before the first step.
    """

    variant: str
    seconds: float
    peak_mib: float
    fill_seconds: float = 0.0


def full_length_rows() -> corpora.Examples:
    """The first 512 sentences of more than 16 tokens, which TenSafe also computes in the shape of 32 tokens.

    Raises:
        corpora.CorpusMissing: SST-2 is not on this machine.
    """
    everything = corpora.sst2("train")
    lengths = [len(ids) for ids in minilm.load_tokenizer()(list(everything.texts))["input_ids"]]
    chosen = [number for number, length in enumerate(lengths) if length > MAX_LENGTH // 2][:BATCH]
    return corpora.Examples(
        tuple(everything.texts[number] for number in chosen), tuple(everything.labels[number] for number in chosen)
    )


def measure_here(variant: str, micro_batch: int, repeats: int) -> StepCost:
    """Measure one variant in this process, after one step of warm-up.

    Raises:
        corpora.CorpusMissing: SST-2 is not on this machine.
    """
    rows = corpora.tokens(full_length_rows(), minilm.load_tokenizer(), MAX_LENGTH)
    model = minilm.load_model(minilm.Adapter(), num_labels=2, seed=1)
    step = (
        plain_step(model, rows, micro_batch) if variant == "plain" else opacus_step(model, rows, micro_batch, variant)
    )

    memory.reset_peak()
    before = memory.resident_mib()
    step()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return StepCost(variant, statistics.median(seconds), memory.peak_mib() - before)


def measure(variant: str, *, micro_batch: int = 64, repeats: int = 5, threads: int = 2) -> StepCost:
    """Measure one of ``VARIANTS`` in a new process.

    Args:
        variant: ``plain``, ``hooks`` or ``ghost``.
        micro_batch: examples in one forward and backward pass.
        repeats: number of timed steps, of which the median counts.
        threads: CPU threads.

    Raises:
        RuntimeError: the process failed; the message is the end of what it printed.
    """
    options = {"--variant": variant, "--micro-batch": micro_batch, "--repeats": repeats, "--threads": threads}
    arguments = [str(word) for option in options.items() for word in option]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.opacus_step", *arguments],
        cwd=corpora.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"measuring {variant} failed: {done.stderr.strip()[-500:]}")
    return StepCost(**json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: a table of all variants, or with ``--variant`` the JSON of one."""
    parser = option_parser("peers.opacus_step", "Time and memory of one training step, with Opacus and without.")
    parser.add_argument("--variant", choices=VARIANTS, help="measure this variant in this process and print JSON")
    parser.add_argument("--micro-batch", type=int, default=64, help="records at once (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    options = parser.parse_args(arguments)
    if options.variant:
        torch.set_num_threads(options.threads)
        print(json.dumps(asdict(measure_here(options.variant, options.micro_batch, options.repeats))))
        return 0

    try:
        corpora.sst2("train")
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    settings = {"micro_batch": options.micro_batch, "repeats": options.repeats, "threads": options.threads}
    costs = [measure(variant, **settings) for variant in VARIANTS]
    print(f"{'variant':8} {'seconds':>8} {'of plain':>9} {'peak MiB':>9}")
    for cost in costs:
        print(f"{cost.variant:8} {cost.seconds:8.3f} {cost.seconds / costs[0].seconds:8.2f}x {cost.peak_mib:9.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
