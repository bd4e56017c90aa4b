"""Neighbouring data sets through the whole private half of a step: the sums differ by at most S, exactly.

This is the sensitivity on which σ rests, so it is asked of everything between a shard and the noise at once: whatever
one unit holds, it moves the integer sum by a vector k with Σk² ≤ S², and the other units' terms by nothing at all.
Rounding and dropout are keyed by unit and record. The last tests break a part on purpose and show that this test sees
it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.platform.trainer.pipeline import (
    CLIP,
    CPU,
    GRID,
    LENGTH,
    POISON,
    WORDS,
    Pipeline,
    Record,
    Unit,
    pipeline,
    squared_norm,
)
from tensorguard.models.losses import forward_logits
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import Batch

PAD = 0
tokens = st.one_of(
    st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=LENGTH),
    st.just([5]),  # shortest
    st.integers(1, WORDS - 2).map(lambda word: [word] * LENGTH),  # longest
    st.integers(1, LENGTH).map(lambda length: [PAD] * length),  # padding only
    st.lists(st.just(POISON), min_size=2, max_size=LENGTH),  # no finite gradient
)
records = st.tuples(tokens, st.integers(0, 1))
examples = records.map(lambda record: [record])
users = st.lists(records, min_size=1, max_size=11)
quick = settings(max_examples=20, suppress_health_check=list(HealthCheck), derandomize=True)


def with_duplicates(units: Sequence[Unit], doubled: bool) -> list[Unit]:
    """The units, and where asked for each of them twice."""
    return [*units, *units] if doubled else list(units)


def check_neighbours(pipe: Pipeline, units: Sequence[Unit], x: Unit, place: int) -> int:
    """The squared distance of the sums of `units` and of them with `x`, who stands at `place` among those drawn."""
    with_x = [*units, x]
    order = [*range(len(units))]
    order.insert(place % len(with_x), len(units))
    return squared_norm(pipe.sum(with_x, order) - pipe.sum(units))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "CausalLM"])
@quick
@given(units=st.lists(examples, max_size=9), x=examples, place=st.integers(0, 20), doubled=st.booleans())
def test_one_example_changes_the_sum_by_at_most_one_clip_norm(
    task: str, precision: str, units: list[Unit], x: Unit, place: int, doubled: bool
) -> None:
    distance = check_neighbours(pipeline(task, precision), with_duplicates(units, doubled), x, place)
    assert distance <= GRID**2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "CausalLM"])
@quick
@given(units=st.lists(users, max_size=4), x=users, place=st.integers(0, 20))
def test_one_user_changes_the_sum_by_at_most_one_clip_norm(
    task: str, precision: str, units: list[Unit], x: Unit, place: int
) -> None:
    assert check_neighbours(pipeline(task, precision), units, x, place) <= GRID**2


@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "CausalLM"])
def test_bound_is_reached_because_clipping_is_active(task: str) -> None:
    """Records whose gradients are clipped come within a tenth of it: the test looks at the right scale."""
    x: Unit = [([7, 9, 11, 13], 1)]
    distance = check_neighbours(pipeline(task, "fp32"), [[([5, 6], 0)]], x, 0)
    assert (0.9 * GRID) ** 2 < distance <= GRID**2


def test_unit_without_a_finite_gradient_changes_no_other_unit() -> None:
    pipe = pipeline("SequenceClassification", "fp32")
    others: list[Unit] = [[([5 + i, 6], i % 2)] for i in range(5)]
    poisoned: Unit = [([POISON] * 4, 1)]
    assert not pipe.sum([poisoned]).any()
    assert check_neighbours(pipe, others, poisoned, 2) == 0


def test_empty_draw_gives_zeros() -> None:
    pipe = pipeline("CausalLM", "fp32")
    assert not pipe.sum([]).any()
    assert check_neighbours(pipe, [], [([7, 8, 9], 0)], 0) > 0


@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "CausalLM"])
def test_sum_does_not_depend_on_the_order_of_the_batch(task: str) -> None:
    generator = np.random.default_rng(0)
    units: list[Unit] = [
        [(generator.integers(1, WORDS - 1, generator.integers(2, LENGTH)).tolist(), 1)] for _ in range(20)
    ]
    pipe = pipeline(task, "bf16")
    assert np.array_equal(pipe.sum(units), pipe.sum(units, generator.permutation(20).tolist()))


class BatchClipper(GridClipper):
    """Clips the sum of what it is given: a well-known mistake."""

    def add(self, rows: torch.Tensor, seeds: list[int]) -> None:
        if len(rows):
            super().add(rows.sum(dim=0, keepdim=True), seeds[:1])


def test_clipping_the_whole_batch_would_fail_this_test() -> None:
    """Where records pull in opposite directions, one more may turn the whole batch's direction around."""
    pipe = pipeline("SequenceClassification")
    units: list[Unit] = [[([5 + i, 6, 7 + i], i % 2)] for i in range(8)]
    x: Unit = [([30, 31, 32, 33], 1)]

    def clipped(data: list[Unit]) -> np.ndarray:
        return pipe.sum(data, clipper=BatchClipper(pipe.gradients.dimension, GRID, CLIP, CPU))

    distances = [squared_norm(clipped([*units[:n], x]) - clipped(units[:n])) for n in range(1, len(units))]
    assert max(distances) > GRID**2


def mean_over_the_batch_s_tokens(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """What Hugging Face's `.loss` is, shared out over the records: each one's part depends on the others' lengths."""
    logits = forward_logits(model, batch).float()
    labels = batch["labels"][:, 1:]
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
    return losses.sum(dim=1) / (labels != -100).sum()


def test_mean_over_the_tokens_of_the_batch_would_fail_this_test() -> None:
    """Clipped so loosely that the records' own shares show: the neighbours' terms shrink when a long record joins."""
    wrong, right = (pipeline("CausalLM", dropout=0.0, loss=loss) for loss in (mean_over_the_batch_s_tokens, None))
    units: list[Unit] = [[([5 + i, 6, 7], 0)] for i in range(6)]
    x: Unit = [([9] * 16, 0)]  # as long as may be in the others' bucket, so it stands in their micro-batch

    def distance(pipe: Pipeline) -> int:
        loose = [GridClipper(pipe.gradients.dimension, GRID, 0.2, CPU) for _ in range(2)]
        return squared_norm(pipe.sum([*units, x], clipper=loose[0]) - pipe.sum(units, clipper=loose[1]))

    assert distance(wrong) > GRID**2 >= distance(right)


def test_unit_contributes_the_same_alone_and_last_of_many() -> None:
    pipe = pipeline("CausalLM")
    x: Record = ([3, 4, 5, 6, 7], 0)
    others: list[Unit] = [[([8 + i] * (3 + i), 0)] for i in range(9)]
    alone = pipe.sum([*others, [x]], order=[9])
    assert np.array_equal(pipe.sum([*others, [x]]) - pipe.sum(others), alone)
