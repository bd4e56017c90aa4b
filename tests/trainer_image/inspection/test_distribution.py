"""Quantiles are numbers that occur, and each number is in one bin."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from tensorguard.inspection.distribution import Distribution, bins_of_lengths, bins_that_double


@pytest.mark.parametrize("numbers", [[4], [1, 1, 2], list(range(1, 400)), [3] * 98 + [900, 20_000]])
def test_quantiles_and_bins(numbers: list[int]) -> None:
    counts = Counter(numbers)
    for bins in (bins_that_double(max(numbers)), bins_of_lengths(counts, 128)):
        found = Distribution.of(counts, bins)
        for name, share in (("min", 0), ("p25", 0.25), ("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1)):
            assert getattr(found, name) == np.quantile(numbers, share, method="inverted_cdf")
        assert found.mean == pytest.approx(np.mean(numbers), abs=0.001)
        assert sum(each.count for each in found.histogram) == len(numbers)
        assert all(second.first == first.last + 1 for first, second in itertools.pairwise(found.histogram))
        assert len(found.histogram) <= 21


def test_lengths_have_bins_of_one_width_up_to_the_long_tail() -> None:
    bins = bins_of_lengths({10: 990, 60: 9, 5_000: 1}, limit=64)
    assert {last - first + 1 for first, last in bins[:-1]} == {4}
    assert bins[-1] == (61, 5_000)
