"""Memory and time of one micro-batch with a large vocabulary: the loss from whole logits, and in chunks of tokens.

A small Llama on dummy tokens comes in, with a vocabulary of 152,000 words. For each way of computing the loss, the
median time of a pass and the peak of the memory that it adds go out, with their ratios.

    .venv/bin/python -m benchmarks.output_head
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time

import torch

from benchmarks import memory
from benchmarks.command import option_parser
from benchmarks.llama import llama
from tensorguard.data.rows import TokenRows
from tensorguard.models.batch_losses import record_loss
from tensorguard.models.load import prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.output_head import find_output_head
from tensorguard.models.self_test import dummy_batches
from tensorguard.models.tasks import task_named
from tensorguard.privacy.gradients import PerExampleGradients

TASK = task_named("CausalLM")


def measure(in_chunks: bool, words: int, tokens: int, records: int, passes: int) -> tuple[float, float]:
    """The median time of a pass in seconds, and the peak of the memory that the passes add, in MiB."""
    torch.set_num_threads(1)
    model_in_memory = llama(words=words, positions=tokens, width=256, inner_width=512, layers=4, heads=4)
    base = prepare_base(model_in_memory, TASK, pad_token_id=0)
    targets = ["q_proj", "v_proj"]
    model = attach_lora(base, rank=16, alpha=32, dropout=0.0, init_seed=0, target_modules=targets)
    batch = dummy_batches(TASK, TokenRows(tokens, 0, words), rows=records, length=tokens)(0)
    head = find_output_head(TASK, model, {name: part[:1, :32] for name, part in batch.items()})
    assert head is not None, "a Llama's logits are the output of its last layer"
    loss = record_loss(TASK, head if in_chunks else None)
    gradients = PerExampleGradients(model, trainable_parameters(model), loss)
    gradients.compute({name: part[:, :32] for name, part in batch.items()}, records)
    memory.reset_peak()
    before, seconds = memory.resident_mib(), []
    for _ in range(passes):
        started = time.perf_counter()
        gradients.compute(batch, records)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), memory.peak_mib() - before


def main() -> int:
    """Run the command line, which prints one line for each way and one with the ratios."""
    parser = option_parser("output_head", "Memory and time of the loss of a large vocabulary.")
    parser.add_argument("--words", type=int, default=152_000, help="size of the vocabulary (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a record (default %(default)s)")
    parser.add_argument("--records", type=int, default=4, help="records at once (default %(default)s)")
    parser.add_argument("--passes", type=int, default=5, help="timed passes (default %(default)s)")
    options = parser.parse_args()
    found = []
    for in_chunks in (False, True):
        # A process of its own, because freed memory may stay with a process.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            arguments = (in_chunks, options.words, options.tokens, options.records, options.passes)
            seconds, peak = pool.apply(measure, arguments)
        found.append((seconds, peak))
        name = "in chunks" if in_chunks else "whole logits"
        print(f"{name:12} {seconds:6.2f} s a pass, {peak:6.0f} MiB more at the peak", flush=True)
    (whole_time, whole_peak), (time_in_chunks, peak_in_chunks) = found
    print(f"chunks/whole: time {time_in_chunks / whole_time:.2f}, memory {peak_in_chunks / whole_peak:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
