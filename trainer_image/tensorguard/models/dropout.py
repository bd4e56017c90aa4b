"""LoRA dropout whose mask belongs to the record, not to the batch.

In: a peft model, and for each micro-batch one secret seed a record (drawn by the worker from its secret stream).
Out: masks that are the same for a record whatever its slot, its neighbours or the number of times that gradient
checkpointing runs a layer. `privacy.gradients` then differentiates through them.

`nn.Dropout` draws one stream over the whole batch: a record that joins shifts the masks of all behind it (measured: the
sum over 64 records moved by 4.7 clip norms). Here each row of each layer has a generator of its own, seeded by
(the record's seed, the layer's number). Nothing is counted between calls, so a recomputed layer draws the same mask;
a layer that a model uses several times in one forward pass uses one mask for all of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

_MASK64 = (1 << 64) - 1


def _mix(seed: int, layer: int) -> int:
    """A 63-bit generator seed; every low bit depends on all of `seed` and `layer` (SplitMix64, Steele et al. 2014).

    torch's CPU generator keeps only 32 bits of its seed, so they have to be well mixed.
    """
    z = (seed + (layer + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return (z ^ (z >> 31)) >> 1


class RecordSeeds:
    """The seeds of the micro-batch in work. One object is shared by all dropout layers of a model.

    Not a thread-local: autograd recomputes checkpointed layers on threads of its own.
    """

    def __init__(self) -> None:
        self.current: tuple[int, ...] | None = None

    @contextmanager
    def use(self, seeds: Sequence[int]) -> Iterator[None]:
        """Inside, row i of every dropout layer draws from `seeds[i]`. Forward *and* backward belong inside."""
        if self.current is not None:
            raise RuntimeError("record seeds are already in use: leave the first `record_seeds` before the next.")
        self.current = tuple(int(seed) for seed in seeds)
        try:
            yield
        finally:
            self.current = None


class RecordDropout(nn.Module):
    """Inverted dropout over [m, ...] with one mask stream a row. Has no parameters and no buffers.

    `layer` is the layer's number, which goes into its masks' seeds; `place` is its name, for messages.
    """

    def __init__(self, p: float, layer: int, place: str, seeds: RecordSeeds) -> None:
        super().__init__()
        self.p = p
        self.layer = layer
        self.place = place
        self.seeds = seeds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [m, ...] float; returns its shape and dtype. Raises RuntimeError in training without one seed a row."""
        if not self.training or self.p == 0.0:
            return x
        seeds = self.seeds.current
        if seeds is None:
            raise RuntimeError(
                "LoRA dropout has no seeds: run forward and backward inside `record_seeds(model, seeds)`."
            )
        if len(seeds) != x.shape[0]:
            raise RuntimeError(
                f"'{self.place}' sees {x.shape[0]} rows in a batch of {len(seeds)} records: "
                "its gradient cannot be told apart by record, so take it out of spec.lora.targetModules."
            )
        keep = torch.empty_like(x, memory_format=torch.contiguous_format)
        generator = torch.Generator(device=x.device)
        for row, seed in zip(keep, seeds, strict=True):
            row.bernoulli_(1.0 - self.p, generator=generator.manual_seed(_mix(seed, self.layer)))
        return x * keep.div_(1.0 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}, layer={self.layer}"


@contextmanager
def record_seeds(model: nn.Module, seeds: Sequence[int]) -> Iterator[None]:
    """Give the micro-batch's rows their dropout seeds (m integers); see `RecordSeeds.use`."""
    with model.record_seeds.use(seeds):
        yield


def use_record_dropout(model: nn.Module) -> None:
    """Replace every `lora_dropout` of a peft model by `RecordDropout`, and hang the shared seeds on the model.

    The `ModuleDict` of peft stays, so peft's forward pass, its state dict and its config see no difference.
    """
    model.record_seeds = RecordSeeds()
    dicts = [(place, module.lora_dropout) for place, module in model.named_modules() if isinstance(module, LoraLayer)]
    for layer, (place, by_adapter) in enumerate(dicts):
        for name, dropout in by_adapter.items():
            if isinstance(dropout, nn.Dropout):
                by_adapter[name] = RecordDropout(dropout.p, layer, place, model.record_seeds)
