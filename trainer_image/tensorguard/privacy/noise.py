"""Discrete Gaussian noise on the integer grid.

`DiscreteGaussian(sigma)` draws integers x with probability proportional to e^{-x²/2σ²} from a secret stream, by integer
table look-ups. The distance of its distribution from the exact one is *computed* at construction (`total_variation`, at
most 2^-80 per draw), not assumed:

- A **table** holds the probabilities of −12σ..12σ as integers that add up to exactly 2^m·2^112, computed with 192-bit
  fixed-point arithmetic. Its form is an alias table (Walker 1977; Vose 1991) of 2^m columns. A draw takes one 64-bit
  word: m bits select the column, and the rest are compared with the column's 112-bit threshold. In one case in 2^(64−m)
  they are equal to the threshold's first bits, and 128 more bits decide.
- A large σ is the sum x₁ + j·x₂ of two small ones with σ₁ = 2j, σ² = σ₁² + j²σ₂² and j ≈ √(σ/2), so that both tables
  stay in the cache. By Poisson summation, the probabilities of the sum differ from the exact ones by a factor within
  1 ± 2Σ_{i≥1} e^{-2π²τ²i²/j²}, τ² = σ₁²j²σ₂²/σ² (Micciancio, Walter 2017, convolution over Z). This is below 2^-110 for
  σ₁ = 2j.

`rint(normal)` is not this distribution, and the low bits of a float sampler do not follow its density (Mironov 2012).
The tests compare with the exact sampler of Canonne, Kamath and Steinke (2020).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tensorguard.privacy.stream import SecretStream

MAX_TOTAL_VARIATION = 2.0**-80
_THRESHOLD_BITS = 112
_FIXED = 192
_TAIL = 12
_PART = 1 << 15
"""Tables end at 12σ: the probability of larger values is below 2^-103."""
_DIRECT_SIGMA = 1024.0
"""Up to this σ, one table of at most 2^15 columns is enough."""


class DiscreteGaussian:
    """A sampler of N_Z(0, σ²): integers with probability proportional to e^{-x²/2σ²}."""

    def __init__(self, sigma: float) -> None:
        """Compute the tables of the sampler.

        Args:
            sigma: σ ≥ 1, in grid steps.
        """
        if not sigma >= 1.0:
            raise ValueError(f"the standard deviation of the noise must be at least one grid step, not {sigma}")
        if sigma <= _DIRECT_SIGMA:
            self._stretch = 0
            self._tables = [_Table(Fraction(sigma) ** 2)]
            self.total_variation = self._tables[0].total_variation
        else:
            self._stretch = math.isqrt(int(sigma / 2))
            fine = Fraction(2 * self._stretch) ** 2
            coarse = (Fraction(sigma) ** 2 - fine) / self._stretch**2
            self._tables = [_Table(fine), _Table(coarse)]
            self.total_variation = sum(table.total_variation for table in self._tables) + convolution_distance(
                fine, coarse, self._stretch
            )
        if self.total_variation > MAX_TOTAL_VARIATION:
            raise ValueError(
                f"the noise sampler of σ = {sigma} grid steps is too far from the discrete Gaussian: "
                f"{self.total_variation:.1e} per draw"
            )

    def draw(self, count: int, stream: SecretStream) -> np.ndarray:
        """`count` independent draws, int64 [count].

        They are made in parts whose arrays stay in the CPU's cache, which takes half the time.
        """
        drawn = np.empty(count, dtype=np.int64)
        for start in range(0, count, _PART):
            part = drawn[start : start + _PART]
            part[:] = self._tables[0].draw(len(part), stream)
            if self._stretch:
                part += self._stretch * self._tables[1].draw(len(part), stream)
        return drawn


def convolution_distance(fine: Fraction, coarse: Fraction, stretch: int) -> float:
    """An upper bound of the total variation between x₁ + j·x₂, x₁ ~ N_Z(0, `fine`), x₂ ~ N_Z(0, `coarse`), and
    N_Z(0, fine + j²·coarse), where j is `stretch`.

    With ε = 2Σ_{i≥1} e^{-2π²(τ/j)²i²} every probability is the exact one times a factor in [(1−ε)/(1+ε), (1+ε)/(1−ε)].
    """
    ratio = float(fine * coarse / (fine + stretch**2 * coarse))  # (τ/j)²
    epsilon = 2.0 * sum(math.exp(-2 * math.pi**2 * ratio * i * i) for i in (1, 2, 3)) * (1 + 1e-9)
    return 2 * epsilon / (1 - epsilon)


class _Table:
    """An alias table of N_Z(0, σ²) over −⌈12σ⌉..⌈12σ⌉."""

    def __init__(self, variance: Fraction) -> None:
        reach = math.ceil(_TAIL * math.sqrt(variance))
        half = _weights(variance, reach)
        weights = half[:0:-1] + half
        self._bits = (len(weights) - 1).bit_length()
        self._offset = reach
        masses = _apportion(weights, (1 << self._bits) << _THRESHOLD_BITS)
        self.total_variation = self._distance(weights, masses, variance, reach)
        threshold, self._alias = _vose(masses, self._bits)
        # numpy compares the first bits of each threshold. The other bits are compared only when those are equal.
        self._first_bits = 64 - self._bits
        self._rest_bits = _THRESHOLD_BITS - self._first_bits
        self._first = np.array([value >> self._rest_bits for value in threshold], dtype=np.uint64)
        self._threshold = threshold

    def draw(self, count: int, stream: SecretStream) -> np.ndarray:
        words = stream.uint64(count)
        column = (words & np.uint64((1 << self._bits) - 1)).astype(np.int64)
        words = words >> np.uint64(self._bits)
        first = self._first[column]
        value = np.where(words < first, column, self._alias[column])
        for index in np.flatnonzero(words == first):
            rest = int.from_bytes(stream.bytes(16), "little") >> (128 - self._rest_bits)
            current = int(column[index])
            keeps = rest < self._threshold[current] & ((1 << self._rest_bits) - 1)
            value[index] = current if keeps else self._alias[current]
        value -= self._offset
        return value

    def _distance(self, weights: list[int], masses: list[int], variance: Fraction, reach: int) -> float:
        """An upper bound of the total variation from the exact distribution: the sum of the bounds for the cut tails,
        the fixed-point weights and the apportioning.
        """
        sigma = math.sqrt(variance)
        # P[|x| > reach] for N_Z(0, σ²) is below the continuous tail's 2·e^{-reach²/2σ²} (Canonne, Kamath, Steinke,
        # proposition 25).
        tail = 2.0 * math.exp(-(reach**2) / (2 * sigma**2))
        # Each weight is within 2·reach² units of the last fixed-point place, of a total of at least 2^_FIXED.
        arithmetic = len(weights) * 2 * reach**2 / 2.0**_FIXED
        total, scale = sum(weights), sum(masses)
        apportioned = sum(abs(mass * total - weight * scale) for mass, weight in zip(masses, weights))
        return tail + 2 * arithmetic + float(Fraction(apportioned, 2 * total * scale))


def _weights(variance: Fraction, reach: int) -> list[int]:
    """e^{-x²/2σ²}·2^192 for x = 0..reach, each within 2·reach² units of the last place.

    With g = e^{-1/2σ²}: w(x+1) = w(x)·g^{2x+1}, which takes two multiplications for each x and only one exponential.
    """
    extra = _FIXED + 64  # the products' truncation errors stay below the last kept place
    g = _exp_minus(1 / (2 * variance), extra)
    square = g * g >> extra
    weights, weight, ratio = [], 1 << extra, g
    for _ in range(reach + 1):
        weights.append(weight >> 64)
        weight = weight * ratio >> extra
        ratio = ratio * square >> extra
    return weights


def _exp_minus(x: Fraction, bits: int) -> int:
    """e^{-x}·2^bits for 0 ≤ x ≤ 1, by its alternating series."""
    term = total = Fraction(1 << bits)
    k = 0
    while abs(term) > Fraction(1, 4):
        k += 1
        term = Fraction(int(term * -x / k * 4), 4)
        total += term
    return int(total)


def _apportion(weights: list[int], scale: int) -> list[int]:
    """`weights` scaled to integers that add up to exactly `scale`. Each is within one of its exact share, except the
    largest, which receives the rest.
    """
    total = sum(weights)
    masses = [weight * scale // total for weight in weights]
    masses[len(masses) // 2] += scale - sum(masses)
    return masses


def _vose(masses: list[int], bits: int) -> tuple[list[int], np.ndarray]:
    """Columns of height 2^112 that hold `masses` exactly: for each column, the height of its own value (threshold) and
    the value that has the remainder (alias).
    """
    height, columns = 1 << _THRESHOLD_BITS, 1 << bits
    remaining = masses + [0] * (columns - len(masses))
    threshold, alias = [height] * columns, np.arange(columns, dtype=np.int64)
    small = [i for i, mass in enumerate(remaining) if mass < height]
    large = [i for i, mass in enumerate(remaining) if mass >= height]
    while small and large:
        less, more = small.pop(), large[-1]
        threshold[less], alias[less] = remaining[less], more
        remaining[more] -= height - remaining[less]
        if remaining[more] < height:
            small.append(large.pop())
    return threshold, alias
