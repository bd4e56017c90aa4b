"""Test accuracy on SST-2: TenSafe with two workers and Opacus' ``PrivacyEngine`` in one process, in one run.

    .venv/bin/python -m benchmarks.accuracy

Both get the same rows, tokens, σ, sampling rate, learning rates and number of steps (see ``benchmarks/README.md``). The
result is the difference of the means over the seeds. A seed fixes the initial values of the classifier and of the LoRA
factors, and in Opacus also draws and noise. TenSafe's draws and noise are secret and differ in every run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import corpora, minilm, tensafe_job
from benchmarks.peers import opacus_sst2
from tensorguard.checkpoint.layout import ADAPTER_WEIGHTS
from tensorguard.models.adapter import load_adapter_state
from tensorguard.models.source import resolve_model
from tensorguard.training.checkpointing import FINAL
from tensorguard.training.config import WorkerConfig
from tensorguard.training.setup import load_lora_model
from tensorguard.training.worker import train

WORKERS = 2


def tensafe_accuracy(directory: Path, seed: int, steps: int) -> tuple[float, str]:
    """One run's test accuracy, and a few words on the ε that was spent according to its ledger."""
    from safetensors.torch import load_file

    from tensorguard.ledger.file import FileLedger

    rows = corpora.sst2("train")
    job, plan, config = tensafe_job.make(directory, rows, f"spec.lora.initSeed={seed}", f"spec.training.steps={steps}")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(config, rank, directory / "meet")) for rank in range(WORKERS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError("a worker failed: its error is in the output above")
    tokenizer = minilm.load_tokenizer()
    model = load_lora_model(job, resolve_model(job.spec.model.name), tokenizer.pad_token_id, torch.device("cpu"))
    load_adapter_state(model, load_file(directory / "checkpoints" / FINAL / ADAPTER_WEIGHTS))
    test = corpora.tokens(corpora.sst2("test"), tokenizer, opacus_sst2.MAX_LENGTH)
    charged = FileLedger(directory).read().steps_charged
    epsilon = plan.epsilon(charged)
    return minilm.accuracy(model, test), f"epsilon {epsilon:.3f} of {charged} charged steps"


def _opacus_accuracy(noise_multiplier: float, seed: int, steps: int) -> float:
    torch.set_num_threads(1)
    return next(iter(opacus_sst2.accuracies(noise_multiplier, [seed], steps=steps)))


def _rank(config: WorkerConfig, rank: int, store: Path) -> None:
    torch.set_num_threads(1)
    with tensafe_job.worker_group(rank, WORKERS, store) as channel:
        train(config, channel, torch.device("cpu"))


def main() -> int:
    """Run the command line.

    The exit status is 1 if TenSafe's mean is more than 0.01 below Opacus', unless the runs were shortened. Where SST-2
    is absent it is 0, and nothing runs.
    """
    parser = argparse.ArgumentParser(description="Test accuracy on SST-2, TenSafe and Opacus.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--steps",
        type=int,
        default=opacus_sst2.STEPS,
        help=f"steps of a run (default {opacus_sst2.STEPS}; with fewer the accuracies mean nothing)",
    )
    options = parser.parse_args()
    try:
        corpora.sst2("train")
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        _, plan, _ = tensafe_job.make(
            Path(scratch) / "plan", corpora.sst2("train"), f"spec.training.steps={options.steps}"
        )
        sigma = plan.mechanism.noise_multiplier
        print(f"sigma {sigma}, sampling rate {plan.mechanism.sample_rate}, {plan.steps} steps", flush=True)
        with multiprocessing.get_context("spawn").Pool(
            WORKERS
        ) as pool:  # one thread each, since two processes share two cores
            runs = [(float(sigma), seed, options.steps) for seed in options.seeds]
            theirs = pool.starmap(_opacus_accuracy, runs, chunksize=1)
        for seed, found in zip(options.seeds, theirs):
            print(f"opacus  seed {seed}: accuracy {found:.4f}", flush=True)
        torch.set_num_threads(1)
        ours = []
        for seed in options.seeds:
            started = time.perf_counter()
            found, epsilon = tensafe_accuracy(Path(scratch) / f"seed-{seed}", seed, options.steps)
            ours.append(found)
            elapsed = time.perf_counter() - started
            print(f"tensafe seed {seed}: accuracy {found:.4f}, {epsilon} ({elapsed:.0f} s)", flush=True)
    gap = statistics.mean(ours) - statistics.mean(theirs)
    print(f"mean of {len(ours)}: tensafe {statistics.mean(ours):.4f}, opacus {statistics.mean(theirs):.4f}, {gap:+.4f}")
    return int(gap < -0.01 and options.steps >= opacus_sst2.STEPS)


if __name__ == "__main__":
    sys.exit(main())
