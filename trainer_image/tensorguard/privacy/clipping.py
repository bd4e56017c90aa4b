"""Clip a unit's gradient and put it on the integer grid, so that its norm is bounded by construction.

A row of float gradients comes in for each unit; an int64 sum over units goes out, to be noised and masked as integers.
Whatever bf16, a CUDA kernel or a hook did before, the last word is an exact integer check: each unit adds a vector k
with Σk² ≤ S², S = 2^k grid steps being one clip norm. That is the sensitivity on which σ rests.

Why rounding is stochastic: rounding to nearest would make small gradients vanish. Its cost is up to about d/4 in the
squared norm, for which the scale leaves room (S′ = S − d/8S − 4), so the check fails once in a blue moon; a unit that
fails it is rounded toward zero.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tensafe_api.reasons import Reason

LEAST_ROOM = 0.9
_CACHED_COORDINATES = 1 << 16


class GridTooCoarse(ValueError):
    """The gradient has so many coordinates that rounding would eat more than a tenth of the clip norm (or its square an
    int64).
    """

    reason: ClassVar[Reason] = Reason.GRID_OVERFLOW


class GridClipper:
    """Sums clipped, rounded and checked units.

    Formal guarantee: for any two sequences of units that differ by one, with the same rounding seed for each unit they
    share, the results of `take()` differ by an integer vector of L2 norm at most S. Not assumed: that gradients are
    finite, that norms were computed exactly. Assumed: that each row depends on its own unit only (models/checks.py).
    """

    def __init__(
        self, dimension: int, grid: int, clip: float, device: torch.device, *, keep_norms: bool = False
    ) -> None:
        """Args: dimension: d, coordinates of a gradient; grid: S, grid steps in one clip norm; clip: C > 0; device: of
        the rows.
        """
        room = grid - dimension / (8 * grid) - 4
        if room < LEAST_ROOM * grid:
            raise GridTooCoarse(
                f"{dimension} trainable parameters are too many for a grid of {grid} steps in a clip norm; "
                "lower spec.lora.rank or spec.training.expectedBatchSize, or name fewer spec.lora.targetModules"
            )
        # So many squares of at most S² fit in an int64; the sums of such pieces are then bounded by S² in turn.
        self._piece = (2**63 - 1) // grid**2
        if math.ceil(dimension / self._piece) * grid**2 >= 2**63:
            raise GridTooCoarse(
                f"{dimension} trainable parameters on a grid of {grid} overflow 64-bit norms; lower spec.lora.rank"
            )
        self._grid = grid
        self._room = room
        self.clip = clip
        self._norms: list[float] | None = [] if keep_norms else None
        self._sum = torch.zeros(dimension, dtype=torch.int64, device=device)
        # On a CPU the half dozen passes over a block should find it in the cache.
        self._rows_at_once = max(1, _CACHED_COORDINATES // dimension) if device.type == "cpu" else 1 << 30

    def add(self, rows: torch.Tensor, seeds: list[int]) -> None:
        """Clip, round, check and add one row for each unit.

        Args:
            rows: float [units, d], the units' gradients (already summed over each unit's records); overwritten.
            seeds: one rounding seed for each row, which belongs to the unit and to nobody else.
        """
        for start in range(0, len(rows), self._rows_at_once):
            block = slice(start, start + self._rows_at_once)
            self._sum += self.to_grid(rows[block], seeds[block]).sum(dim=0)

    def take(self) -> torch.Tensor:
        """The sum since the last call, int64 [d]; the next one starts at zero."""
        total, self._sum = self._sum, torch.zeros_like(self._sum)
        return total

    def take_norms(self) -> list[float]:
        """The units' norms before clipping since the last call; private, and kept only where asked for."""
        norms, self._norms = self._norms or [], [] if self._norms is not None else None
        return norms

    def to_grid(self, rows: torch.Tensor, seeds: list[int]) -> torch.Tensor:
        """`rows` on the grid: int64 [units, d], each row k with Σk² ≤ S² exactly. `rows` is overwritten."""
        squares = rows.to(torch.float64)
        squares *= squares
        # One sum for each row: batched reductions may associate differently as the number of rows or a row's alignment
        # changes.
        norms = torch.stack([row.sum() for row in squares]).sqrt()
        if self._norms is not None:
            self._norms += norms.tolist()
        finite = torch.isfinite(norms)
        scale = torch.clamp(self.clip / norms, max=1.0) * (self._room / self.clip)
        rows *= scale.to(rows.dtype).unsqueeze(1)
        if not bool(finite.all()):
            rows[~finite] = 0.0  # 0 × NaN is NaN
        rounded, within = self._checked(torch.floor(rows + uniforms(seeds, rows.shape[1], rows.device)))
        if not bool(within.all()):
            again, fits = self._checked(torch.trunc(rows[~within]))
            again[~fits] = 0
            rounded[~within] = again
        return rounded

    def _checked(self, rounded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`rounded` as int64 [units, d], and which rows have |k| ≤ S and Σk² ≤ S²: bool [units]; the others' integers
        mean nothing.

        |k| is bounded before the cast, since a cast of 1e30 wraps. Then the squares are added in pieces, few enough of
        them that no piece can pass 2^63, and of those that are at most S² each, so few that their sum cannot either:
        int64 arithmetic is exact throughout.
        """
        bounded = rounded.abs().amax(dim=1) <= self._grid  # False for NaN
        if not bool(bounded.all()):
            rounded[~bounded] = 0.0
        whole = rounded.to(torch.int64)
        pieces = torch.stack([piece.sum(dim=1) for piece in (whole * whole).split(self._piece, dim=1)])
        bounded &= (pieces <= self._grid**2).all(dim=0)
        return whole, bounded & (pieces.sum(dim=0) <= self._grid**2)


def uniforms(seeds: list[int], dimension: int, device: torch.device) -> torch.Tensor:
    """Uniform fractions in [0, 1) for stochastic rounding, float32 [len(seeds), d]: a row depends on its own seed
    alone.

    They need to be independent of the gradients, not secret. On a CPU they are 16-bit words of an AES key stream (a
    tenth of the time of torch's generator); on a GPU the device's own generator makes them.
    """
    if device.type != "cpu":
        out = torch.empty(len(seeds), dimension, device=device)
        generator = torch.Generator(device=device)
        for row, seed in zip(out, seeds):
            row.uniform_(generator=generator.manual_seed(seed))
        return out
    words = np.empty((len(seeds), 2 * dimension + 16), dtype=np.uint8)
    zeros = bytes(2 * dimension)
    for row, seed in zip(words, seeds):
        Cipher(algorithms.AES(seed.to_bytes(16, "little")), modes.CTR(bytes(16))).encryptor().update_into(zeros, row)
    fractions = words[:, : 2 * dimension].view(np.uint16).astype(np.float32)
    fractions *= 2.0**-16
    return torch.from_numpy(fractions)
