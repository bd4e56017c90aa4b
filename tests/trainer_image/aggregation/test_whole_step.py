"""A whole private step without a model: sampled units, clipping, noise, charge, masks, reveal, decoding.

Gradients are given; the rest is the real code. The tests check what the parts guarantee together: one unit moves the
revealed sum by at most S, the noise of every rank is in it and is never used twice, and nothing is revealed that was
not charged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from tensorguard.training.budget_gate import Verdict
from tests.support.trainer.private_steps import Shard, StepResults, example_mechanism, take_steps

Run = Callable[[int, Callable[[Any], Any]], list[Any]]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_noise_of_all_ranks_is_in_every_sum_and_is_new_in_each_step(size: int, workers: Run) -> None:
    """Without a unit the sums are noise alone, of variance σ²·S²."""
    mechanism, dimension = example_mechanism(size), 6000
    results: list[StepResults] = workers(size, lambda channel: take_steps(channel, mechanism, {}, 4, dimension, keys=1))
    sums = results[0].sums
    assert len(sums) == 4
    assert all(np.array_equal(mine, theirs) for other in results for mine, theirs in zip(sums, other.sums))
    sigma = float(mechanism.noise_multiplier) * mechanism.grid
    for total in sums:
        assert 1e-6 < stats.chi2(dimension).sf((total**2).sum() / sigma**2) < 1 - 1e-6
        assert abs(total.mean()) < 5 * sigma / math.sqrt(dimension)
    for one, other in itertools.combinations(sums, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(dimension)


def test_restart_draws_new_noise(workers: Run) -> None:
    mechanism = example_mechanism(2)
    runs = [workers(2, lambda channel: take_steps(channel, mechanism, {}, 2, 500))[0].sums for _ in range(2)]
    for one, other in itertools.combinations([*runs[0], *runs[1]], 2):
        assert (one == other).mean() < 0.05


spans = st.sampled_from([0.0, 1e-45, 1e-6, 0.1, 1.0, 1e30, 3e38, math.nan, math.inf, -math.inf])
row = st.lists(st.one_of(spans, st.floats(width=32)), min_size=7, max_size=7)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    shards=st.lists(st.dictionaries(st.integers(0, 50), row, max_size=4), min_size=2, max_size=2),
    x=row,
    at=st.booleans(),
)
@example(shards=[{0: [1.0] * 7, 1: [1.0] * 7}, {}], x=[-1e30] * 7, at=False)
def test_one_more_unit_moves_the_revealed_sum_by_at_most_the_grid(
    shards: list[dict[int, list[float]]], x: list[float], at: bool, workers: Run
) -> None:
    """Both runs draw the same noise and every unit joins, so the revealed sums differ by what x adds, and no more."""
    mechanism = example_mechanism(2, sigma="0.01")

    def revealed(shards: Sequence[Shard]) -> np.ndarray:
        return workers(2, lambda channel: take_steps(channel, mechanism, shards[channel.rank], 1, 7, keys=3))[0].sums[0]

    more = [dict(shard) for shard in shards]
    more[at] = {99: x, **more[at]} if at else {**more[at], 99: x}  # before or after the others
    difference = revealed(more) - revealed(shards)
    assert sum(int(k) ** 2 for k in difference) <= mechanism.grid**2


def test_mean_is_over_the_public_batch_size_not_the_drawn_one(workers: Run) -> None:
    """Three units of half the clip norm, B = 8: the gradient is their sum over 8, not over three."""
    mechanism = example_mechanism(2, sigma="0.005")
    rows = [[0.25 if place == unit else 0.0 for place in range(6)] for unit in range(3)]
    shards: list[Shard] = [{0: rows[0], 1: rows[1]}, {2: rows[2]}]
    (total,) = workers(2, lambda channel: take_steps(channel, mechanism, shards[channel.rank], 1, 6))[0].sums
    # In grid steps. The margin for rounding takes four of S, and noise of σ·S = 82 steps is in each coordinate.
    assert np.abs(total - mechanism.grid * np.array([0.5, 0.5, 0.5, 0, 0, 0])).max() < 8 * 82


def test_step_with_an_empty_draw_is_taken_noised_and_charged(workers: Run) -> None:
    mechanism = example_mechanism(2, rate="0.0000000001")
    shard = {unit: [1.0] * 300 for unit in range(5)}
    results: list[StepResults] = workers(2, lambda channel: take_steps(channel, mechanism, shard, 3, 300))
    for one in results:
        assert one.verdicts == [Verdict.CONTINUE] * 3
        assert [event for event in one.events if event[0] == "charge"] == [("charge", step) for step in range(3)]
        assert all(total.any() for total in one.sums)


def test_each_step_is_charged_before_it_is_revealed(workers: Run) -> None:
    results: list[StepResults] = workers(
        2, lambda channel: take_steps(channel, example_mechanism(2), {0: [1.0] * 9}, 3, 9)
    )
    expected = [(kind, step) for step in range(3) for kind in ("charge", "reveal")]
    assert [one.events for one in results] == [expected] * 2


def test_step_that_is_not_charged_is_not_revealed(workers: Run) -> None:
    results: list[StepResults] = workers(
        2, lambda channel: take_steps(channel, example_mechanism(2), {0: [1.0] * 9}, 4, 9, budget=2)
    )
    for one in results:
        assert one.verdicts == [Verdict.CONTINUE] * 2 + [Verdict.EXHAUSTED] * 2
        assert len(one.sums) == 2
        assert one.events.count(("reveal", 2)) == 0


def test_stop_on_one_rank_prevents_the_reveal_on_all(workers: Run) -> None:
    """The last rank wants to stop; the others learn it from the header, after the charge and before the reveal."""

    def work(channel: Any) -> StepResults:
        return take_steps(channel, example_mechanism(2), {0: [1.0] * 9}, 2, 9, stop_before=1)

    for one in workers(2, work):
        assert one.verdicts == [Verdict.CONTINUE, Verdict.STOP]
        assert len(one.sums) == 1
        assert ("reveal", 1) not in one.events
