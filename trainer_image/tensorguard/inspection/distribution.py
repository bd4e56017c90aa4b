"""The distribution of whole numbers: quantiles, and a histogram for a picture. In: how often each number occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_BINS = 20
_EACH = 12
"""Numbers up to this one have a bin for each."""
_NICE = (1, 2, 4, 5, 8, 10)


@dataclass(frozen=True)
class Bin:
    """How many of the numbers are from `first` to `last`."""

    first: int
    last: int
    count: int

    @property
    def label(self) -> str:
        """The numbers as "3" or "5-8"."""
        return f"{self.first:,}" if self.first == self.last else f"{self.first:,}-{self.last:,}"


@dataclass(frozen=True)
class Distribution:
    """The distribution of at least one whole number.

    `p25` to `p99` are quantiles: the smallest number that so many percent of the numbers do not exceed. Each number is
    in one bin of `histogram`.
    """

    min: int
    p25: int
    median: int
    p75: int
    p90: int
    p99: int
    max: int
    mean: float
    histogram: tuple[Bin, ...]

    @classmethod
    def of(cls, counts: Mapping[int, int], bins: Sequence[tuple[int, int]]) -> Distribution:
        """The distribution of numbers, given as number -> how often it occurs, in bins from a first to a last."""
        values = sorted(counts)
        total = sum(counts.values())
        mean = sum(value * count for value, count in counts.items()) / total
        histogram = (
            Bin(first, last, sum(counts[value] for value in values if first <= value <= last)) for first, last in bins
        )
        quantiles = (_quantile(counts, values, total, percent) for percent in (0, 25, 50, 75, 90, 99, 100))
        return cls(*quantiles, round(mean, 3), tuple(histogram))  # type: ignore[arg-type, call-arg]


def _quantile(counts: Mapping[int, int], values: Sequence[int], total: int, percent: int) -> int:
    seen = 0
    for value in values:
        seen += counts[value]
        if 100 * seen >= percent * total:
            return value
    raise ValueError("no numbers")


def bins_that_double(most: int) -> list[tuple[int, int]]:
    """Bins from 1 to `most`: one for each number if there are few, else of doubling width."""
    if most <= _EACH:
        return [(number, number) for number in range(1, most + 1)]
    bins = [(1, 1), (2, 2)]
    while bins[-1][1] < most:
        bins.append((bins[-1][1] + 1, 2 * bins[-1][1]))
    return bins


def bins_of_lengths(counts: Mapping[int, int], limit: int) -> list[tuple[int, int]]:
    """About MAX_BINS bins of one width for numbers from 1 on; the last one holds a long tail.

    The tail is what is above `limit` and above 99 % of the numbers, which are given as number -> how often it occurs.
    """
    most = max(counts)
    shown = min(most, max(limit, _quantile(counts, sorted(counts), sum(counts.values()), 99)))
    width = _nice_width(shown)
    bins = [(first, first + width - 1) for first in range(1, shown + 1, width)]
    first, last = bins[-1]
    return [*bins[:-1], (first, max(last, most))]


def _nice_width(most: int) -> int:
    power = 1
    while True:
        for nice in _NICE:
            if most <= nice * power * MAX_BINS:
                return nice * power
        power *= 10
