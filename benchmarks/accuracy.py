"""Test accuracy on SST-2 or E2E: TenSafe with two workers and Opacus' ``PrivacyEngine`` in one process, in one run.

    .venv/bin/python -m benchmarks.accuracy
    .venv/bin/python -m benchmarks.accuracy --data glue --seeds 1 2 3
    .venv/bin/python -m benchmarks.accuracy --epsilons 1 --parts head

TenSafe trains LoRA on two layers, and the head alone with its defaults (``lora.layers: []``). With LoRA, both get the
same rows, tokens, ε, sampling rate, number of steps, learning rate and schedule (see ``benchmarks/README.md``). Each
finds its own σ: TenSafe by PLD, Opacus by PRV, its default. The results are the means over the seeds, with their
standard errors. A seed fixes the initial values of the classifier and of the LoRA factors, and in Opacus also draws and
noise. TenSafe's draws and noise are secret and differ in every run.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import corpora, minilm, tensafe_job
from benchmarks.classification import TARGET_EPSILON, WORKLOADS, Workload, add_data_option
from benchmarks.command import option_parser
from benchmarks.group import run_ranks, worker_group
from benchmarks.peers import opacus_classifier
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.checkpoint.layout import ADAPTER_WEIGHTS
from tensorguard.models.adapter import load_adapter_state
from tensorguard.models.source import resolve_model
from tensorguard.training.base_model import load_lora_model
from tensorguard.training.checkpointing import FINAL
from tensorguard.training.config import WorkerConfig
from tensorguard.training.worker import train

WORKERS = 2
PARTS = ("opacus", "lora", "head")


def tensafe_run(
    directory: Path, workload: Workload, epsilon: float, seed: int, steps: int, *changes: str
) -> tuple[TenSafeTrainingJob, str]:
    """Train in ``directory``, with ``changes`` of the manifest.

    Returns the job, and a few words on the ε that was spent according to its ledger.
    """
    from tensorguard.ledger.file import FileLedger

    overrides = (*_overrides(workload, epsilon, steps), *changes, f"spec.lora.initSeed={seed}")
    job, plan, config = tensafe_job.make(directory, workload.private(), *overrides)
    run_ranks(WORKERS, _rank, config, directory / "meet")
    charged = FileLedger(directory).read().steps_charged
    return job, f"epsilon {plan.epsilon(charged):.3f} of {charged} charged steps"


def tensafe_accuracy(directory: Path, workload: Workload, job: TenSafeTrainingJob) -> float:
    """Test accuracy of the final adapter of ``tensafe_run``, on the base model that ``job`` describes."""
    from safetensors.torch import load_file

    tokenizer = minilm.load_tokenizer()
    model = load_lora_model(job, resolve_model(job.spec.model.name), tokenizer.pad_token_id, torch.device("cpu"))
    load_adapter_state(model, load_file(directory / "checkpoints" / FINAL / ADAPTER_WEIGHTS))
    test = corpora.tokens(workload.test(), tokenizer, workload.max_length)
    return minilm.accuracy(model, test)


def _opacus_accuracy(name: str, rows: int | None, epsilon: float, seed: int, steps: int) -> float:
    torch.set_num_threads(1)
    return next(opacus_classifier.accuracies(WORKLOADS[name].shortened(rows), epsilon, [seed], steps))


def _rank(rank: int, config: WorkerConfig, store: Path) -> None:
    torch.set_num_threads(1)
    with worker_group(rank, WORKERS, store) as channel:
        train(config, channel, torch.device("cpu"))


def main() -> int:
    """Run the command line.

    The exit status is 1 if TenSafe's mean is more than 0.01 below Opacus' at the same learning rate, unless the runs
    were shortened. Where the data are absent it is 0, and nothing runs.
    """
    parser = option_parser("accuracy", "Test accuracy, TenSafe and Opacus.")
    add_data_option(parser)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="seeds of the runs (default 1 2 3 4 5)"
    )
    parser.add_argument(
        "--epsilons",
        type=float,
        nargs="+",
        default=[TARGET_EPSILON, 3.0, 1.0],
        help="the ε to keep, one after the other (default 8 3 1)",
    )
    parser.add_argument(
        "--steps", type=int, help="steps of a run (default: the workload's; with fewer the accuracies mean nothing)"
    )
    parser.add_argument(
        "--rows", type=int, help="rows to train and to test on (default: all; with fewer the accuracies mean nothing)"
    )
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change TenSafe's manifest with LoRA alone, such as to steps and a batch that `tensafe plan` proposes",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="Opacus, LoRA or the head alone (default all)"
    )
    options = parser.parse_args()
    workload = WORKLOADS[options.data].shortened(options.rows)
    try:
        workload.private(), workload.test()
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    means = [_train_all(workload, epsilon, options) for epsilon in options.epsilons]
    gaps = [each["lora"] - each["opacus"] for each in means if each.keys() >= {"lora", "opacus"}]
    whole = (options.steps or workload.steps) >= workload.steps and options.rows is None
    return int(whole and min(gaps, default=0) < -0.01)


def _train_all(workload: Workload, epsilon: float, options: argparse.Namespace) -> dict[str, float]:
    """Train each part with each seed, print the accuracies, and return their means."""
    steps, seeds = options.steps or workload.steps, options.seeds
    head = workload.head if options.steps is None else (*workload.head, f"spec.training.steps={steps}")
    changes_of = {"lora": options.changes, "head": head}
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        _, plan, _ = tensafe_job.make(
            Path(scratch) / "plan", workload.private(), *_overrides(workload, epsilon, steps), *options.changes
        )
        sigma = plan.mechanism.noise_multiplier
        theirs_sigma = opacus_classifier.noise_multiplier(workload, epsilon, steps)
        print(
            f"{workload.name}, epsilon {epsilon:g}: {plan.steps} steps, sampling rate {plan.mechanism.sample_rate}, "
            f"sigma {sigma} (opacus {theirs_sigma:.6f})",
            flush=True,
        )
        if "opacus" in options.parts:
            # One thread each, since two processes share two cores.
            with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
                runs = [(workload.name, options.rows, epsilon, seed, steps) for seed in seeds]
                found["opacus"] = pool.starmap(_opacus_accuracy, runs, chunksize=1)
            for seed, accuracy in zip(seeds, found["opacus"]):
                print(f"opacus, seed {seed}: accuracy {accuracy:.4f}", flush=True)
        torch.set_num_threads(1)
        for part in [each for each in changes_of if each in options.parts]:
            found[part] = []
            for seed in seeds:
                started = time.perf_counter()
                directory = Path(scratch) / f"{part}-{seed}"
                job, spent = tensafe_run(directory, workload, epsilon, seed, steps, *changes_of[part])
                accuracy = tensafe_accuracy(directory, workload, job)
                found[part].append(accuracy)
                elapsed = time.perf_counter() - started
                print(f"{part}, seed {seed}: accuracy {accuracy:.4f}, {spent} ({elapsed:.0f} s)", flush=True)
    means = {part: statistics.mean(accuracies) for part, accuracies in found.items()}
    for part, accuracies in found.items():
        error = math.sqrt(_variance(accuracies) / len(accuracies))
        print(
            f"{workload.name}, epsilon {epsilon:g}, mean of {len(seeds)}: {part} {means[part]:.4f} ± {error:.4f}",
            flush=True,
        )
    return means


def _overrides(workload: Workload, epsilon: float, steps: int) -> tuple[str, ...]:
    return *workload.overrides, f"spec.training.steps={steps}", f'spec.privacy.targetEpsilon="{epsilon:g}"'


def _variance(values: Sequence[float]) -> float:
    return statistics.variance(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    sys.exit(main())
