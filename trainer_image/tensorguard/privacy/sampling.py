"""Poisson sampling of units: selects the units that join a step.

Every unit of the shard joins independently with probability q, with all its records. A draw may be empty: the step is
still taken, noised and charged. Local Poisson draws over a fixed partition are together a global Poisson draw, so
workers only have to agree on the step number.

Each unit takes one 64-bit word of the secret stream, which is compared with ⌊q·2^64⌋. Inclusion is exactly
Bernoulli(⌊q·2^64⌋/2^64) ≤ q, with no floating-point number between the claim and the draw (docs/decisions/0001). A
million units take two milliseconds.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tensorguard.privacy.stream import SecretStream

_WORDS_AT_ONCE = 1 << 20


class PoissonSampler:
    """Draws units of one shard.

    Formal guarantee: draws are independent over units, steps and workers. The inclusion probability of each unit is at
    most `sample_rate`, and smaller by less than 2^-64. Assumed: the stream is secret and is used for nothing else.
    """

    def __init__(self, units: int, sample_rate: str, stream: SecretStream) -> None:
        """Prepare to draw from one shard.

        Args:
            units: number of units in the shard.
            sample_rate: q, as the decimal string that the accountant uses.
            stream: used only for sampling.
        """
        self._units = units
        self._threshold = int(Fraction(sample_rate) * 2**64)
        if not 0 < self._threshold <= 2**64:
            raise ValueError(f"the sampling rate must be in (0, 1], not {sample_rate}")
        self._stream = stream

    def draw(self) -> np.ndarray:
        """The units of one step: their indices, ascending, int64 [k] with 0 ≤ k ≤ units."""
        if self._threshold == 2**64:
            return np.arange(self._units)
        threshold = np.uint64(self._threshold)
        chosen = [
            start + np.flatnonzero(self._stream.uint64(min(_WORDS_AT_ONCE, self._units - start)) < threshold)
            for start in range(0, self._units, _WORDS_AT_ONCE)
        ]
        return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)
