"""The sizes of a run: which model, which records, and on which device.

No module of this package imports Ray, and none needs a download: the model has random weights.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from transformers import LlamaForCausalLM

from benchmarks import memory
from benchmarks.llama import llama
from tensafe_api.resources.model import Quantization
from tensorguard.models.load import PRECISIONS

MIB, GIB = 1 << 20, 1 << 30
PRECISION = "bf16"


@dataclass(frozen=True)
class Size:
    """A model, and the records of a step.

    Attributes:
        length: tokens of each record.
        batch: records of a step.
        rank: of the LoRA factors on all linear layers.
        high_rank: with it, the factors have about 40 million numbers in the full model.
        adapted: the layers with LoRA factors; None: all of them.
        quantization: of the frozen weights.
        checkpointing: whether each layer is computed again in the backward pass.
    """

    words: int
    width: int
    inner_width: int
    layers: int
    heads: int
    key_value_heads: int
    length: int
    batch: int
    rank: int
    high_rank: int
    adapted: tuple[int, ...] | None = None
    quantization: Quantization | None = None
    checkpointing: bool = False

    def model(self, device: torch.device) -> LlamaForCausalLM:
        """The base model on `device`, as transformers makes it."""
        return llama(
            words=self.words,
            positions=self.length,
            width=self.width,
            inner_width=self.inner_width,
            layers=self.layers,
            heads=self.heads,
            key_value_heads=self.key_value_heads,
            dtype=PRECISIONS[PRECISION],
            device=device,
        )


FULL = Size(
    words=32_000,
    width=2048,
    inner_width=5632,
    layers=22,
    heads=32,
    key_value_heads=4,
    length=512,
    batch=256,
    rank=16,
    high_rank=51,
)
"""1.1 billion weights. Rank 16 has 12.6 million numbers, rank 51 has 40.2 million."""
LARGE = Size(
    words=152_064,
    width=3584,
    inner_width=18_944,
    layers=28,
    heads=28,
    key_value_heads=4,
    length=1024,
    batch=8,
    rank=16,
    high_rank=16,
)
"""7.6 billion weights in the shape of Qwen2.5-7B. Rank 16 has 40.4 million numbers."""
TINY = Size(
    words=100,
    width=32,
    inner_width=64,
    layers=1,
    heads=2,
    key_value_heads=1,
    length=32,
    batch=4,
    rank=2,
    high_rank=4,
)
"""Shows that the code runs."""


@dataclass(frozen=True)
class Setting:
    """One run of the benchmark.

    Attributes:
        micro_batch: records in one forward and backward pass. The private step uses fewer where so many are not exact.
        rounds: how often all variants are measured, one after the other.
        steps: timed steps of a variant in each round, after one that is not timed.
    """

    size: Size
    device: torch.device
    micro_batch: int
    rounds: int
    steps: int

    @property
    def full(self) -> bool:
        """Whether the figures count: a model of full size on a GPU."""
        return self.size is FULL and self.device.type == "cuda"

    def at(self, micro_batch: int) -> Setting:
        """The same run with another micro-batch."""
        return replace(self, micro_batch=micro_batch)


@dataclass(frozen=True)
class Timed:
    """What some steps took: seconds of each, and the largest number of bytes that were allocated at a time."""

    seconds: tuple[float, ...]
    peak: int


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def peak_memory(device: torch.device, found: list[int]) -> Iterator[None]:
    """Append the peak of allocated bytes within this context: of the GPU, or the resident memory of the process."""
    free_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        memory.reset_peak()
    yield
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else int(memory.peak_mib() * MIB)
    found.append(peak)


def free_memory(device: torch.device) -> None:
    """Free what no variable holds any more, so that one variant leaves nothing for the next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def default_kernels() -> Iterator[None]:
    """PyTorch's default kernels within this context, as a training without this project has them."""
    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    kept = [getattr(torch.backends.cuda.matmul, name) for name in names]
    torch.use_deterministic_algorithms(False)
    for name in names:
        setattr(torch.backends.cuda.matmul, name, True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True)
        for name, value in zip(names, kept):
            setattr(torch.backends.cuda.matmul, name, value)
