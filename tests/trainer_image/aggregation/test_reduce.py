"""The integers of the masked sum: saturation, wrapping, and the check of the group's all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorguard.aggregation.channel import AggregationError, check_all_reduce_wraps
from tensorguard.aggregation.reduce import CARRIER_MAX, add_noise_and_mask, reveal, saturate, to_signed

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
wide = st.integers(-(2**40), 2**40)
word = st.integers(0, 2**32 - 1)


def longs(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_saturation_is_symmetric_and_keeps_values_in_range() -> None:
    values = longs(0, -1, 2**31 - 1, -(2**31) + 1, 2**31, -(2**31), 2**40, -(2**40))
    most = 2**31 - 1
    assert saturate(values).tolist() == [0, -1, most, -most, most, -most, most, -most]
    assert most == CARRIER_MAX


@given(wide, st.integers(-(2**22), 2**22))
def test_saturation_never_increases_a_difference(value: int, change: int) -> None:
    one, other = saturate(longs(value, value + change)).tolist()
    assert abs(one - other) <= abs(change)


@given(wide, st.integers(-(2**34), 2**34), word)
def test_masked_word_is_the_sum_modulo_2_to_the_32(value: int, noise: int, masked: int) -> None:
    masked_word = add_noise_and_mask(longs(value), longs(noise), np.array([masked], dtype=np.uint32))
    assert masked_word.dtype == np.uint32
    assert int(masked_word[0]) == (max(-CARRIER_MAX, min(CARRIER_MAX, value)) + noise + masked) % 2**32


@given(st.integers(-(2**31), 2**31 - 1))
def test_to_signed_restores_signed_integers(value: int) -> None:
    total = add_noise_and_mask(longs(0), longs(value), np.zeros(1, dtype=np.uint32))
    assert to_signed(total).tolist() == [value]
    assert to_signed(total).dtype == np.int32


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_reveal_is_the_same_on_all_workers_and_keeps_the_vector(size: int, workers: Run) -> None:
    vectors = np.random.default_rng(1).integers(0, 2**32, size=(size, 100), dtype=np.uint32)
    before = vectors.copy()
    totals = workers(size, lambda channel: reveal(channel, vectors[channel.rank]))
    expected = [sum(column) % 2**32 for column in before.T.tolist()]
    assert all(total.tolist() == expected for total in totals)
    assert np.array_equal(vectors, before)


@pytest.mark.parametrize("size", [1, 2])
def test_all_reduce_of_the_test_channel_keeps_its_argument(size: int, workers: Run) -> None:
    """The contract of `Channel`. `test_gloo.py` checks it for the channel of torch.distributed."""
    vectors = np.array([[1, 5], [2, 5]], dtype=np.uint32)
    totals = workers(size, lambda channel: channel.all_reduce(vectors[channel.rank]))
    assert [total.tolist() for total in totals] == [vectors[:size].sum(axis=0).tolist()] * size
    assert vectors.tolist() == [[1, 5], [2, 5]]
    assert not any(np.shares_memory(total, vectors) for total in totals)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_all_reduce_that_wraps_passes_the_check(size: int, workers: Run) -> None:
    workers(size, check_all_reduce_wraps)


class Saturating:
    """A group whose sum saturates at the largest integer, as on some accelerators."""

    def __init__(self, channel: Any) -> None:
        self.rank, self.size = channel.rank, channel.size
        self._exchange = channel._exchange

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        exact = sum(theirs.view(np.int32).astype(np.int64) for theirs in self._exchange.all_gather(self.rank, vector))
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)


class Floating(Saturating):
    """A group whose sum is in single precision."""

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        total = sum(theirs.astype(np.float32) for theirs in self._exchange.all_gather(self.rank, vector))
        return (np.asarray(total).astype(np.float64) % 2.0**32).astype(np.uint32)


@pytest.mark.parametrize("kind", [Saturating, Floating])
def test_all_reduce_that_does_not_wrap_is_refused(kind: Callable[[Any], Any], outcomes: Run) -> None:
    for result in outcomes(2, lambda channel: check_all_reduce_wraps(kind(channel))):
        assert isinstance(result, AggregationError)
        assert "does not wrap modulo 2^32" in str(result)
