"""LoRA dropout whose mask belongs to the record, not to the batch.

In: a peft model, and for each micro-batch one secret seed for each record (the worker draws them from its secret
stream). Out: masks that are the same for a record in every slot, beside any other records, and each time that gradient
checkpointing recomputes a layer. Then `privacy.gradients` differentiates through them.

`nn.Dropout` draws one stream over the whole batch, so an added record shifts the masks of all records behind it
(measured: the sum over 64 records moved by 4.7 clip norms). Here each row of each layer has its own generator, seeded
by (the record's seed, the layer's number). No state is kept between calls, so a recomputed layer draws the same mask.
If a model uses a layer several times in one forward pass, the layer has the same mask each time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from tensorguard.privacy.gradients import NotByRecordError

_MASK64 = (1 << 64) - 1


def _mix(seed: int, layer: int) -> int:
    """A 63-bit generator seed of which every bit depends on all of `seed` and `layer` (SplitMix64, Steele et al. 2014).

    The CPU generator of torch keeps only 32 bits of its seed, so the bits must be well mixed.
    """
    z = (seed + (layer + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return (z ^ (z >> 31)) >> 1


class RecordSeeds:
    """The seeds of the current micro-batch. All dropout layers of a model share one object.

    It is not thread-local, because autograd recomputes checkpointed layers on other threads.
    """

    def __init__(self) -> None:
        self.current: tuple[int, ...] | None = None

    @contextmanager
    def use(self, seeds: Sequence[int]) -> Iterator[None]:
        """Row i of every dropout layer draws from `seeds[i]`. Run forward *and* backward within this context."""
        if self.current is not None:
            raise RuntimeError("record seeds are already in use: leave the first `record_seeds` before the next.")
        self.current = tuple(int(seed) for seed in seeds)
        try:
            yield
        finally:
            self.current = None


class RecordDropout(nn.Module):
    """Inverted dropout over [m, ...] with one mask stream for each row. Has no parameters and no buffers.

    `layer` is the layer's number, a part of the seeds of its masks. `place` is its name, for messages.
    """

    def __init__(self, p: float, layer: int, place: str, seeds: RecordSeeds) -> None:
        super().__init__()
        self.p = p
        self.layer = layer
        self.place = place
        self.seeds = seeds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: float [m, ...]. Returns this shape and dtype. Training needs m seeds."""
        if not self.training or self.p == 0.0:
            return x
        seeds = self.seeds.current
        if seeds is None:
            raise RuntimeError(
                "LoRA dropout has no seeds: run forward and backward inside `record_seeds(model, seeds)`."
            )
        if len(seeds) != x.shape[0]:
            raise NotByRecordError(
                f"'{self.place}' sees {x.shape[0]} rows in a batch of {len(seeds)} records, so its gradient cannot be "
                "separated by record: leave it out of spec.lora.targetModules, or choose another spec.model.name."
            )
        keep = torch.empty_like(x, memory_format=torch.contiguous_format)
        if not x.is_meta:  # a tensor without numbers, with which `models.memory` measures a pass
            generator = torch.Generator(device=x.device)
            for row, seed in zip(keep, seeds, strict=True):
                row.bernoulli_(1.0 - self.p, generator=generator.manual_seed(_mix(seed, self.layer)))
        return x * keep.div_(1.0 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}, layer={self.layer}"


@contextmanager
def record_seeds(model: nn.Module, seeds: Sequence[int]) -> Iterator[None]:
    """Give the rows of the micro-batch their dropout seeds (m integers). See `RecordSeeds.use`."""
    with cast(RecordSeeds, model.record_seeds).use(seeds):
        yield


def use_record_dropout(model: nn.Module) -> None:
    """Replace every `lora_dropout` of a peft model by `RecordDropout`, and store the shared seeds in the model.

    The `ModuleDict` of peft stays, so peft's forward pass, state dict and config do not change.
    """
    shared = RecordSeeds()
    model.record_seeds = shared  # type: ignore[assignment]  # neither a module nor a tensor
    dicts = [(place, module.lora_dropout) for place, module in model.named_modules() if isinstance(module, LoraLayer)]
    for layer, (place, by_adapter) in enumerate(dicts):
        for name, dropout in by_adapter.items():
            if isinstance(dropout, nn.Dropout):
                by_adapter[name] = RecordDropout(dropout.p, layer, place, shared)
