"""Poisson sampling: exact thresholds, Bernoulli marginals, independence over units, steps and workers, empty draws."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tensorguard.privacy import sampling
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream


class ScriptedStream(SecretStream):
    """A stream of given words."""

    def __init__(self, words: list[int]) -> None:
        self._words = words

    def uint64(self, count: int) -> np.ndarray:
        taken, self._words = self._words[:count], self._words[count:]
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64)


def stream(number: int) -> SecretStream:
    return SecretStream(number.to_bytes(32, "big"))


@given(st.integers(1, 10**10))
def test_unit_joins_exactly_if_its_word_is_below_the_threshold(numerator: int) -> None:
    rate = f"{numerator / 10**10:.10f}"
    threshold = Fraction(rate) * 2**64 // 1
    assert Fraction(threshold, 2**64) <= Fraction(rate) < Fraction(threshold + 1, 2**64)
    if threshold == 2**64:
        return
    words = [threshold - 1, threshold, 0, 2**64 - 1]
    expected = [0, 2]
    assert PoissonSampler(4, rate, ScriptedStream(words)).draw().tolist() == expected


def test_rate_just_below_one_is_not_rounded_to_one() -> None:
    words = [2**64 - 1, 2**64 - 2]
    assert PoissonSampler(2, "0.99999999999999999999999", ScriptedStream(words)).draw().tolist() == [1]


def test_smallest_rate_draws_the_smallest_word() -> None:
    assert PoissonSampler(3, "6e-20", ScriptedStream([1, 0, 2**64 - 1])).draw().tolist() == [1]


def draws(units: int, rate: str, steps: int, number: int = 1) -> np.ndarray:
    """Which units joined which steps: bool [steps, units]."""
    sampler = PoissonSampler(units, rate, stream(number))
    joined = np.zeros((steps, units), dtype=bool)
    for row in joined:
        row[sampler.draw()] = True
    return joined


def test_every_unit_joins_with_the_sampling_rate() -> None:
    steps, rate = 3000, 0.1
    counts = draws(300, "0.1", steps).sum(axis=0)
    statistic = ((counts - steps * rate) ** 2).sum() / (steps * rate * (1 - rate))
    assert 1e-6 < stats.chi2(300).sf(statistic) < 1 - 1e-6


def test_batch_sizes_are_binomial_and_include_empty_draws() -> None:
    units, steps = 6, 20_000
    sizes = np.bincount(draws(units, "0.2", steps).sum(axis=1), minlength=units + 1)
    expected = stats.binom(units, 0.2).pmf(np.arange(units + 1)) * steps
    assert sizes[0] > steps / 5  # 0.8^6 = 0.26
    rare = expected < 10
    observed = np.append(sizes[~rare], sizes[rare].sum())
    assert stats.chisquare(observed, np.append(expected[~rare], expected[rare].sum())).pvalue > 1e-6


def test_steps_are_independent() -> None:
    joined = draws(500, "0.1", 2000)
    again = (joined[1:] & joined[:-1]).sum()
    assert stats.binomtest(int(again), joined[1:].size, 0.01).pvalue > 1e-6


def test_units_are_independent() -> None:
    joined = draws(400, "0.1", 2000)
    neighbours = (joined[:, 1:] & joined[:, :-1]).sum()
    assert stats.binomtest(int(neighbours), joined[:, 1:].size, 0.01).pvalue > 1e-6


def test_workers_with_equal_global_seeds_draw_independently() -> None:
    both = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        sampler = PoissonSampler(1000, "0.5", SecretStream())
        both.append([sampler.draw().tolist() for _ in range(3)])
    first, second = both
    assert all(here != there for here in first for there in second)
    joined = draws(500, "0.1", 2000, number=1) & draws(500, "0.1", 2000, number=2)
    assert stats.binomtest(int(joined.sum()), joined.size, 0.01).pvalue > 1e-6


def test_empty_draw_has_the_right_type() -> None:
    drawn = PoissonSampler(100, "0.0000000001", stream(1)).draw()
    assert drawn.shape == (0,)
    assert drawn.dtype == np.int64


def test_shard_without_units_draws_no_unit() -> None:
    drawn = PoissonSampler(0, "0.5", stream(1)).draw()
    assert drawn.shape == (0,)
    assert drawn.dtype == np.int64


def test_all_units_join_at_rate_one() -> None:
    assert PoissonSampler(5, "1", stream(1)).draw().tolist() == [0, 1, 2, 3, 4]
    assert PoissonSampler(5, "1.0", stream(1)).draw().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("units", [6, 7, 8, 14, 20])
def test_large_shard_is_drawn_in_chunks_without_losing_a_unit(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def several() -> list[list[int]]:
        sampler = PoissonSampler(units, "0.5", stream(units))
        return [sampler.draw().tolist() for _ in range(20)]

    at_once = several()
    monkeypatch.setattr(sampling, "_WORDS_AT_ONCE", 7)
    assert several() == at_once
    assert {unit for drawn in at_once for unit in drawn} == set(range(units))


@pytest.mark.parametrize("rate", ["0", "1.0000000001", "-0.1", "1e-30"])
def test_invalid_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="sampling rate"):
        PoissonSampler(5, rate, stream(1))
