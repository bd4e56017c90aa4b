"""A quantised base beside bf16 and fp32: test accuracy on SST-2, bytes of the weights, and time of a micro-batch.

    .venv/bin/python -m benchmarks.quantization

Accuracy: the job of `benchmarks.accuracy` at each precision and quantisation, two workers, the same seeds. A seed fixes
the initial values of the classifier and of the LoRA factors. Draws and noise are secret and differ in every run. Where
the base is quantised, the same adapter is also measured on the base without quantisation, because users may serve it
so.

Cost: MiniLM and a decoder of Llama's shape, 32 records of 64 tokens, one thread. The time is CPU time of forward and
backward pass, clipping and rounding, with all forms in turn: the median of the ratios to bf16.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers.utils import logging

from benchmarks import accuracy, corpora, kernels
from benchmarks.classification import SST2, TARGET_EPSILON
from benchmarks.command import option_parser
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.model import Quantization
from tensorguard.models.batch_losses import record_loss
from tensorguard.models.bit_equality import use_deterministic_kernels
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.privacy.gradients import PerExampleGradients


@dataclass(frozen=True)
class Form:
    """How the base model is stored."""

    precision: str
    quantization: Quantization | None = None

    @property
    def name(self) -> str:
        return f"{self.quantization}, computed in {self.precision}" if self.quantization else self.precision

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes of the manifest."""
        chosen = (f"spec.model.quantization={self.quantization}",) if self.quantization else ()
        return f"spec.training.precision={self.precision}", *chosen


FORMS = {"bf16": Form("bf16"), "fp32": Form("fp32"), "INT8": Form("bf16", "INT8"), "NF4": Form("bf16", "NF4")}
"""The time of each is divided by that of the first."""


def measure_accuracy(form: Form, epsilon: float, seeds: Sequence[int], steps: int) -> None:
    """Train with each seed, and print the accuracies and their mean."""
    found, served = [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            started = time.perf_counter()
            directory = Path(scratch) / "run"
            job, spent = accuracy.tensafe_run(directory, SST2, epsilon, seed, steps, *form.changes)
            found.append(accuracy.tensafe_accuracy(directory, SST2, job))
            if form.quantization:
                served.append(accuracy.tensafe_accuracy(directory, SST2, _without_quantization(job)))
        elapsed = time.perf_counter() - started
        on_whole = f", {served[-1]:.4f} on the base without quantisation" if served else ""
        print(f"{form.name} seed {seed}: accuracy {found[-1]:.4f}{on_whole}, {spent} ({elapsed:.0f} s)", flush=True)
    on_whole = f", {statistics.mean(served):.4f} on the base without quantisation" if served else ""
    print(f"{form.name}, mean of {len(found)}: accuracy {statistics.mean(found):.4f}{on_whole}", flush=True)


def _without_quantization(job: TenSafeTrainingJob) -> TenSafeTrainingJob:
    model = job.spec.model.model_copy(update={"quantization": None})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"model": model})})


def measure_cost(name: str, rows: int, repeats: int) -> None:
    """Print the bytes of the frozen weights of a model in each form, and its time relative to bf16."""
    load, targets = kernels.MODELS[name]
    device, benches, sizes = torch.device("cpu"), [], []
    for form in FORMS.values():
        base = load(form.precision, device, form.quantization)
        sizes.append(_megabytes(base.model))
        model = attach_lora(base, rank=8, alpha=16, dropout=0.0, init_seed=7, target_modules=targets)
        gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(base.task))
        benches.append(kernels.Bench(model, base.task, gradients, rows, device))
    for bench in benches:
        bench.seconds(0)
    rounds = [[bench.cpu_seconds(seed) for bench in benches] for seed in range(repeats)]
    for number, (form, (linear, whole)) in enumerate(zip(FORMS.values(), sizes)):
        ratio = statistics.median(each[number] / each[0] for each in rounds)
        milliseconds = 1000 * statistics.median(each[number] for each in rounds) / rows
        print(
            f"{name}, {form.name}: linear layers {linear:.1f} MB, whole model {whole:.1f} MB; "
            f"{milliseconds:.1f} ms a record, {ratio:.2f} x bf16",
            flush=True,
        )


def _megabytes(model: nn.Module) -> tuple[float, float]:
    """Megabytes (10^6 bytes) of the weights and scales of the linear layers, and of all parameters."""
    linear = (module for module in model.modules() if isinstance(module, nn.Linear))
    return (
        sum(p.nbytes for module in linear for name, p in module.named_parameters() if name != "bias") / 1e6,
        sum(p.nbytes for p in model.parameters()) / 1e6,
    )


def main() -> int:
    """Run the command line. Where SST-2 is absent, only the cost is measured."""
    parser = option_parser("quantization", "A quantised base beside bf16 and fp32.")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2], help="none: no accuracy")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=[*FORMS], help="of the accuracy; default: all")
    parser.add_argument("--epsilon", type=float, default=TARGET_EPSILON, help="the ε to keep (default %(default)g)")
    parser.add_argument(
        "--steps",
        type=int,
        default=SST2.steps,
        help=f"of a run; with fewer than the default {SST2.steps} the accuracies mean nothing",
    )
    parser.add_argument("--rows", type=int, default=32, help="records in a micro-batch that is timed")
    parser.add_argument("--repeats", type=int, default=9, help="how often each micro-batch is timed; 0: no cost")
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    use_deterministic_kernels()
    for name in kernels.MODELS if options.repeats else ():
        measure_cost(name, options.rows, options.repeats)
    try:
        corpora.sst2("train")
    except corpora.CorpusMissing as missing:
        print(f"accuracy skipped: {missing}")
        return 0
    for form in options.forms if options.seeds else ():
        measure_accuracy(FORMS[form], options.epsilon, options.seeds, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
