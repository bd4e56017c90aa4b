"""How the rows of a micro-batch are made of records: one class for each kind of input.

In come the records of a shard. Out come the tensors that a model reads, with a fixed number of rows. Row i depends on
record i alone. Rows without a record are dummies: a text has one visible padding token, an image is black.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tensorguard.data.images import ImageRecipe
from tensorguard.data.shard import Shard

MIN_BUCKET = 16


def buckets(max_length: int) -> tuple[int, ...]:
    """The lengths that micro-batches can have: the powers of two from 16 up to max_length, and max_length."""
    found = []
    length = MIN_BUCKET
    while length < max_length:
        found.append(length)
        length *= 2
    return (*found, max_length)


class Rows(ABC):
    """Makes the rows of micro-batches for one kind of input."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, ...]:
        """The lengths that a micro-batch can have, ascending. They are public. The last one bounds every record."""

    @abstractmethod
    def build(self, shard: Shard, records: Sequence[int], size: int, length: int) -> dict[str, torch.Tensor]:
        """The inputs of the model by name, each [size, ...]: row i is `records[i]`, the others are dummies."""

    @abstractmethod
    def dummies(
        self, rows: int, length: int, generator: torch.Generator, *, padded: bool = False
    ) -> dict[str, torch.Tensor]:
        """Public random inputs of the same names, dtypes and shapes, for the self-test.

        Args:
            padded: whether all texts are shorter than `length`; otherwise row 0 is not.
        """


@dataclass(frozen=True)
class TokenRows(Rows):
    """Texts: `input_ids` and `attention_mask`, int64 [m, L]; padding is on the right, and marked by the mask alone.

    Attributes:
        max_length: in tokens; it bounds every record.
        pad_id: the token that fills rows.
        vocabulary: number of tokens that the model knows; dummies draw from them.
    """

    max_length: int
    pad_id: int
    vocabulary: int

    @property
    def lengths(self) -> tuple[int, ...]:
        return buckets(self.max_length)

    def build(self, shard: Shard, records: Sequence[int], size: int, length: int) -> dict[str, torch.Tensor]:
        tokens = np.full((size, length), self.pad_id, dtype=np.int64)
        mask = np.zeros((size, length), dtype=np.int64)
        mask[:, 0] = 1  # a dummy row without a visible token would attend to nothing, which gives NaN
        for i, record in enumerate(records):
            ids = shard.tokens(record)
            tokens[i, : len(ids)] = ids
            mask[i, : len(ids)] = 1
        return {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}

    def dummies(
        self, rows: int, length: int, generator: torch.Generator, *, padded: bool = False
    ) -> dict[str, torch.Tensor]:
        longest = max(1, length - 1) if padded else length
        lengths = torch.randint(1, longest + 1, (rows, 1), generator=generator)
        if not padded:
            lengths[0] = length
        mask = (torch.arange(length) < lengths).long()
        ids = torch.randint(self.vocabulary, (rows, length), generator=generator) * mask
        return {"input_ids": ids, "attention_mask": mask}


@dataclass(frozen=True)
class PixelRows(Rows):
    """Images: `pixel_values` [m, 3, height, width], which the model's image processor would give.

    A level from 0 to 255 is looked up in a table. So a pixel's value depends neither on its place in the batch nor on
    other pixels, not even by rounding.

    Attributes:
        recipe: of the model.
        dtype: of the model's weights, to which the values are rounded.
    """

    recipe: ImageRecipe
    dtype: torch.dtype = torch.float32

    @property
    def lengths(self) -> tuple[int, ...]:
        return (1,)

    def build(self, shard: Shard, records: Sequence[int], size: int, length: int) -> dict[str, torch.Tensor]:
        pixels = np.zeros((size, self.recipe.pixels.bytes), dtype=np.uint8)
        for i, record in enumerate(records):
            pixels[i] = shard.pixels(record)
        return self._values(pixels)

    def dummies(
        self, rows: int, length: int, generator: torch.Generator, *, padded: bool = False
    ) -> dict[str, torch.Tensor]:
        pixels = torch.randint(256, (rows, self.recipe.pixels.bytes), generator=generator)
        return self._values(pixels.numpy())

    def _values(self, pixels: np.ndarray) -> dict[str, torch.Tensor]:
        form = self.recipe.pixels
        levels = pixels.reshape(len(pixels), 3, form.height, form.width)
        channels = np.arange(3).reshape(1, 3, 1, 1)
        return {"pixel_values": torch.from_numpy(self.recipe.table[channels, levels]).to(self.dtype)}
