"""Clips a unit's gradient and rounds it to the integer grid, so that its norm is bounded by construction.

In: a row of float gradients for each unit. Out: an int64 sum over units, to which noise and masks are added as
integers. The last operation is an exact integer check, independent of any earlier error of bf16, a CUDA kernel or a
hook: each unit adds a vector k with Σk² ≤ S², where S (a power of two) is the number of grid steps in one clip norm.
That is the sensitivity on which σ rests.

Rounding is stochastic, because rounding to nearest would make small gradients vanish. It adds up to about d/4 to the
squared norm. The scale leaves a margin for this (S′ = S − d/8S − 4), so the check fails very rarely. A unit that fails
it is rounded toward zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tensafe_api.reasons import Reason

MIN_SCALE = 0.9
"""The smallest allowed S′/S."""
_CPU_COORDINATES, _GPU_COORDINATES = 1 << 16, 1 << 22
"""How many coordinates are clipped and rounded at a time, in whole rows and at least one. On a CPU they should stay in
the cache for the half dozen passes over them. On a GPU each pass starts a kernel, and needs up to 28 bytes for each."""


def rows_at_once(dimension: int, device: torch.device) -> int:
    """How many rows of `dimension` coordinates a clipper on `device` clips and rounds at a time."""
    return max(1, (_CPU_COORDINATES if device.type == "cpu" else _GPU_COORDINATES) // dimension)


class GridTooCoarse(ValueError):
    """The gradient has so many coordinates that rounding would use up more than a tenth of the clip norm, or that the
    squared norm would overflow an int64.
    """

    reason: ClassVar[Reason] = Reason.GRID_OVERFLOW


class GridClipper:
    """Sums clipped, rounded and checked units.

    Formal guarantee: for any two sequences of units that differ by one, with the same rounding seed for each unit they
    share, the results of `take()` differ by an integer vector of L2 norm at most S. Not assumed: that gradients are
    finite, or that norms were computed exactly. Assumed: that each row depends on its own unit only
    (`models.self_test`).
    """

    def __init__(
        self, dimension: int, grid: int, clip: float, device: torch.device, *, keep_norms: bool = False
    ) -> None:
        """Start with an empty sum.

        Args:
            dimension: d, the number of coordinates of a gradient.
            grid: S, the number of grid steps in one clip norm.
            clip: C > 0, the clip norm.
            device: of the rows.
            keep_norms: whether to keep the norm of each row, before clipping.

        Raises:
            GridTooCoarse: if the grid has too few steps for this dimension, or too many for 64-bit norms.
        """
        scaled_norm = grid - dimension / (8 * grid) - 4  # S′
        if scaled_norm < MIN_SCALE * grid:
            raise GridTooCoarse(
                f"{dimension} trainable parameters are too many for a grid of {grid} steps in a clip norm; "
                "lower spec.lora.rank or spec.training.expectedBatchSize, or list fewer spec.lora.targetModules"
            )
        # This many squares of at most S² fit in an int64. The sum of each such piece is then checked against S².
        self._piece = (2**63 - 1) // grid**2
        if math.ceil(dimension / self._piece) * grid**2 >= 2**63:
            raise GridTooCoarse(
                f"{dimension} trainable parameters on a grid of {grid} overflow 64-bit norms; lower spec.lora.rank"
            )
        self.grid = grid
        self._scaled_norm = scaled_norm
        self.clip = clip
        self.device = device
        self._norms: list[float] | None = [] if keep_norms else None
        self._sum = torch.zeros(dimension, dtype=torch.int64, device=device)
        self._rows_at_once = rows_at_once(dimension, device)

    def add(self, rows: torch.Tensor | Sequence[torch.Tensor], seeds: list[int]) -> None:
        """Clip, round, check and add one row for each unit.

        Args:
            rows: float [units, d], or a list of [d]: the units' gradients (already summed over each unit's records).
                They are left alone.
            seeds: one rounding seed for each row. It belongs to the unit, and no other unit has it.
        """
        for block in self.blocks(rows, seeds):
            self._sum += block[0] if len(block) == 1 else block.sum(dim=0)
            del block  # before the next one is made

    def blocks(self, rows: torch.Tensor | Sequence[torch.Tensor], seeds: list[int]) -> Iterator[torch.Tensor]:
        """Yield the rows on the grid, in their order, as `add` adds them: int64 [units, d] of a few units each."""
        for start in range(0, len(rows), self._rows_at_once):
            block = slice(start, start + self._rows_at_once)
            yield self.to_grid(torch.stack(tuple(rows[block])), seeds[block])

    def take(self) -> torch.Tensor:
        """The sum since the last call, int64 [d]; the next one starts at zero."""
        total, self._sum = self._sum, torch.zeros_like(self._sum)
        return total

    def take_norms(self) -> list[float]:
        """The norms before clipping of the units since the last call. They are private, and are kept only if
        `keep_norms` is set.
        """
        norms, self._norms = self._norms or [], [] if self._norms is not None else None
        return norms

    def to_grid(self, rows: torch.Tensor, seeds: list[int]) -> torch.Tensor:
        """`rows` on the grid: int64 [units, d], each row k with Σk² ≤ S² exactly. `rows` is overwritten."""
        norms = torch.stack([_norm(row) for row in rows])
        if self._norms is not None:
            self._norms += norms.tolist()
        finite = torch.isfinite(norms)
        scale = torch.clamp(self.clip / norms, max=1.0) * (self._scaled_norm / self.clip)
        rows *= scale.to(rows.dtype).unsqueeze(1)
        if not bool(finite.all()):
            rows[~finite] = 0.0  # 0 × NaN is NaN
        raised = uniforms(seeds, rows.shape[1], rows.device).add_(rows)
        rounded, within = self._checked(raised.floor_())
        if not bool(within.all()):
            again, fits = self._checked(torch.trunc(rows[~within]))
            again[~fits] = 0
            rounded[~within] = again
        return rounded

    def _checked(self, rounded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`rounded` as int64 [units, d], and which rows have |k| ≤ S and Σk² ≤ S²: bool [units]. The integers of the
        other rows have no meaning.

        |k| is bounded before the cast, because a cast of 1e30 wraps. Then the squares are added in pieces. A piece has
        so few squares that its sum stays below 2^63. Pieces of at most S² each are so few that their sum stays below
        2^63 as well. Therefore int64 arithmetic is exact throughout.
        """
        bounded = rounded.abs().amax(dim=1) <= self.grid  # False for NaN
        whole = rounded.to(torch.int64)
        pieces = torch.stack([piece.sum(dim=1) for piece in (whole * whole).split(self._piece, dim=1)])
        bounded &= (pieces <= self.grid**2).all(dim=0)
        return whole, bounded & (pieces.sum(dim=0) <= self.grid**2)


def _norm(row: torch.Tensor) -> torch.Tensor:
    """√(Σ row²) in float64, in an order that depends on the length of the row alone.

    A reduction over a batch may add in another order when the number of rows changes, and on a GPU a reduction over a
    row adds in another order when its address is aligned differently. A copy of its own is always aligned.
    """
    norm: torch.Tensor = torch.linalg.vector_norm(row.clone(), dtype=torch.float64)
    return norm


def uniforms(seeds: list[int], dimension: int, device: torch.device) -> torch.Tensor:
    """Uniform fractions in [0, 1) for stochastic rounding, float32 [len(seeds), d]. A row depends only on its own seed.

    They must be independent of the gradients; they need not be secret. On a CPU they are 16-bit words of an AES key
    stream, which takes a tenth of the time of PyTorch's generator. On a GPU the generator of the device makes them.
    """
    if device.type != "cpu":
        return _uniforms_of_generator(seeds, dimension, device)
    words = np.empty((len(seeds), 2 * dimension + 16), dtype=np.uint8)
    zeros = bytes(2 * dimension)
    for row, seed in zip(words, seeds):
        Cipher(algorithms.AES(seed.to_bytes(16, "little")), modes.CTR(bytes(16))).encryptor().update_into(
            zeros, row.data
        )
    fractions = words[:, : 2 * dimension].view(np.uint16).astype(np.float32)
    fractions *= 2.0**-16
    return torch.from_numpy(fractions)


def _uniforms_of_generator(seeds: list[int], dimension: int, device: torch.device) -> torch.Tensor:
    out = torch.empty(len(seeds), dimension, device=device)
    generator = torch.Generator(device=device)
    for row, seed in zip(out, seeds):
        row.uniform_(generator=generator.manual_seed(seed))
    return out
