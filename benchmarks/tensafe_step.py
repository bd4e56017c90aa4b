"""Time and memory of TenSafe's step: without privacy, private, and with masks and verification between two workers.

The name of a variant comes in. ``StepCost`` goes out, as for the peers. Each variant runs in a separate process.

- ``plain`` is the same trainer without privacy: the same micro-batches and model, an ordinary backward pass, AdamW.
- ``private`` is the complete private step of one worker: draw, per-example gradients, clip, round, check, discrete
  noise, ledger, optimiser.
- ``overhead`` runs two workers with one thread each and measures the share of a step that masks and verification take.
  Steps with and without them alternate in the same processes, so that nothing else differs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks import corpora, memory, tensafe_job
from benchmarks.command import option_parser
from benchmarks.group import run_ranks, worker_group
from benchmarks.peers.opacus_step import BATCH, StepCost, full_length_rows
from benchmarks.plain import plain_step
from tensorguard.aggregation import pairwise_masks
from tensorguard.aggregation.keys import PairKey
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.models.batch_losses import record_loss
from tensorguard.models.bit_equality import find_bit_equal_shape
from tensorguard.models.frozen_prefix import StateRows
from tensorguard.models.self_test import SelfTest
from tensorguard.models.tasks import task_of
from tensorguard.training import setup as training_setup
from tensorguard.training.config import WorkerConfig
from tensorguard.training.setup import StepComponents
from tensorguard.training.worker import Worker

VARIANTS = ("plain", "private")
_CPU = torch.device("cpu")


@contextmanager
def _started_worker(
    directory: Path, rows: corpora.Examples, workers: int, rank: int, threads: int, micro_batch: int
) -> Iterator[Worker]:
    """A worker that has acquired its ledger, with a job in which every unit joins every step (q = 1)."""
    overrides = [
        f"spec.cluster.workers={workers}",
        f"spec.dataset.unit.atLeast={BATCH}",
        f"spec.training.microBatchSize={micro_batch}",
        "spec.training.steps=100",
        "spec.privacy.noiseMultiplier=0.83",
        "spec.privacy.targetEpsilon=1e9",
    ]
    if rank == 0:
        torch.set_num_threads(threads)
        _, _, config = tensafe_job.make(directory, rows, *overrides)
        (directory.parent / "config.json").write_text(json.dumps(asdict(config)))
    with worker_group(rank, workers, directory.parent / "meet") as channel:
        channel.all_gather(b"made")
        config = WorkerConfig(**json.loads((directory.parent / "config.json").read_text()))
        worker = Worker(config, channel, _CPU)
        worker.start()
        yield worker
        worker.close()


def _without_privacy(parts: StepComponents, micro_batch: int) -> Callable[[int], None]:
    """An ordinary step on every unit of the shard."""
    parts.per_example_gradients.close()
    loss = record_loss(task_of(parts.job.spec), parts.output_head)
    return plain_step(
        parts.model, loss, parts.optimizer, parts.shard, micro_batch=micro_batch, form=parts.form, device=_CPU
    )


def measure_here(variant: str, micro_batch: int, repeats: int, threads: int) -> StepCost:
    """Measure one variant in this process, after one step of warm-up."""
    loaded: list[float] = []
    filled: list[float] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as running:
        with (
            mock.patch.object(training_setup, "find_bit_equal_shape", _recording_memory(loaded)),
            mock.patch.object(StateRows, "fill", _recording_time(StateRows.fill, filled)),
        ):
            started = _started_worker(Path(scratch) / "job", full_length_rows(), 1, 0, threads, micro_batch)
            worker = running.enter_context(started)
        torch.set_num_threads(threads)
        private = worker.private_step
        assert private is not None
        step = _without_privacy(worker.components, micro_batch) if variant == "plain" else private.run
        memory.reset_peak()
        step(0)
        seconds = []
        for number in range(1, repeats + 1):
            begun = time.perf_counter()
            step(number)
            seconds.append(time.perf_counter() - begun)
        peak = memory.peak_mib() - loaded[0]
        return StepCost(f"tensafe-{variant}", statistics.median(seconds), peak, sum(filled))


def _recording_time(call: Callable[..., Iterator[int]], found: list[float]) -> Callable[..., Iterator[int]]:
    """Wrap a generator to record the seconds from its start to its end."""

    def recording(*args: Any) -> Iterator[int]:
        begun = time.perf_counter()
        yield from call(*args)
        found.append(time.perf_counter() - begun)

    return recording


def _recording_memory(found: list[float]) -> Callable[..., int]:
    """Wrap `find_bit_equal_shape`, which runs once the model is loaded, to record the memory in use."""

    def recording(test: Callable[[int], SelfTest], *, rows: int, device: torch.device) -> int:
        found.append(memory.resident_mib())
        return find_bit_equal_shape(test, rows=rows, device=device)

    return recording


def measure(variant: str, *, micro_batch: int, repeats: int, threads: int) -> StepCost:
    """Measure one of ``VARIANTS`` in a new process."""
    arguments = [
        "--variant",
        variant,
        "--micro-batch",
        str(micro_batch),
        "--repeats",
        str(repeats),
        "--threads",
        str(threads),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tensafe_step", *arguments],
        cwd=corpora.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"measuring {variant} failed: {done.stderr.strip()[-2000:]}")
    return StepCost(**json.loads(done.stdout.splitlines()[-1]))


def overhead(micro_batch: int, repeats: int) -> tuple[float, float]:
    """Median seconds of a step of two workers with masks and verification, and without; the two alternate."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        run_ranks(2, _overhead_rank, Path(scratch) / "job", micro_batch, repeats, result)
        with_masks, without = json.loads(result.read_text())
        return with_masks, without


def _overhead_rank(rank: int, directory: Path, micro_batch: int, repeats: int, result: Path) -> None:
    with _started_worker(directory, full_length_rows(), 2, rank, 1, micro_batch) as worker:
        torch.set_num_threads(1)
        step = worker.private_step
        assert step is not None
        aggregator = step.aggregator
        assert isinstance(aggregator, pairwise_masks.PairwiseMasks)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        step.run(0)
        for number in range(1, 2 * repeats + 1):
            masked = number % 2 == 0
            # A step's mask is computed during the step before, so this patch takes effect in step `number + 1`.
            next_masked = not masked
            aggregator.verify_level = "Standard" if masked else "Disabled"
            with mock.patch.object(pairwise_masks, "pairwise_mask", pairwise_mask if next_masked else _no_mask):
                started = time.perf_counter()
                step.run(number)
                seconds[masked].append(time.perf_counter() - started)
        if rank == 0:
            result.write_text(json.dumps([statistics.median(seconds[True]), statistics.median(seconds[False])]))


def _no_mask(_pairs: Mapping[int, PairKey], _rank: int, _step: int, length: int) -> np.ndarray:
    return np.zeros(length, dtype=np.uint32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: measure one variant in this process and print it as JSON."""
    parser = option_parser("tensafe_step", "Time and memory of one step of TenSafe.")
    parser.add_argument("--variant", choices=VARIANTS, required=True, help="the step to measure")
    parser.add_argument("--micro-batch", type=int, default=64, help="records at once (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default %(default)s)")
    options = parser.parse_args(arguments)
    print(json.dumps(asdict(measure_here(options.variant, options.micro_batch, options.repeats, options.threads))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
