"""Sensitivity: the sums of neighbouring data sets through the whole private part of a step differ by at most S.

σ rests on this bound, so one test covers everything between a shard and the noise. Whatever one unit contains, it
changes the integer sum by a vector k with Σk² ≤ S², and it does not change the terms of other units. Rounding and
dropout are keyed by unit and record. The last tests break one part on purpose, and show that this test detects it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensafe_api.tasks import TASKS
from tensorguard.models.batch_losses import forward_logits
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import Batch
from tests.support.trainer.pipeline import (
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
PROPERTY_TASKS = [
    "SequenceClassification",
    pytest.param("TokenClassification", marks=pytest.mark.slow),
    "CausalLM",
    pytest.param("ImageClassification", marks=pytest.mark.slow),
]
quick = settings(max_examples=20, suppress_health_check=list(HealthCheck), derandomize=True)


def with_duplicates(units: Sequence[Unit], doubled: bool) -> list[Unit]:
    """The units; with `doubled`, each of them twice."""
    return [*units, *units] if doubled else list(units)


def check_neighbours(pipe: Pipeline, units: Sequence[Unit], x: Unit, position: int) -> int:
    """The squared distance of the sums with and without unit `x`, which is at `position` of the drawn units."""
    with_x = [*units, x]
    order = [*range(len(units))]
    order.insert(position % len(with_x), len(units))
    return squared_norm(pipe.sum(with_x, order) - pipe.sum(units))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", PROPERTY_TASKS)
@quick
@given(units=st.lists(examples, max_size=9), x=examples, position=st.integers(0, 20), doubled=st.booleans())
def test_one_example_changes_the_sum_by_at_most_one_clip_norm(
    task: str, precision: str, units: list[Unit], x: Unit, position: int, doubled: bool
) -> None:
    distance = check_neighbours(pipeline(task, precision), with_duplicates(units, doubled), x, position)
    assert distance <= GRID**2


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", PROPERTY_TASKS)
@quick
@given(units=st.lists(users, max_size=4), x=users, position=st.integers(0, 20))
def test_one_user_changes_the_sum_by_at_most_one_clip_norm(
    task: str, precision: str, units: list[Unit], x: Unit, position: int
) -> None:
    assert check_neighbours(pipeline(task, precision), units, x, position) <= GRID**2


@pytest.mark.parametrize("task", TASKS)
def test_bound_is_reached_because_clipping_is_active(task: str) -> None:
    """Records whose gradients are clipped reach at least 0.9 of the bound, so the test has the right scale."""
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


@pytest.mark.parametrize("task", TASKS)
def test_sum_does_not_depend_on_the_order_of_the_batch(task: str) -> None:
    generator = np.random.default_rng(0)
    units: list[Unit] = [
        [(generator.integers(1, WORDS - 1, generator.integers(2, LENGTH)).tolist(), 1)] for _ in range(20)
    ]
    pipe = pipeline(task, "bf16")
    assert np.array_equal(pipe.sum(units), pipe.sum(units, generator.permutation(20).tolist()))


class BatchClipper(GridClipper):
    """Clips the sum of the batch in place of each gradient: a well-known mistake."""

    def add(self, rows: torch.Tensor | Sequence[torch.Tensor], seeds: list[int]) -> None:
        if len(rows):
            super().add([torch.stack(tuple(rows)).sum(dim=0)], seeds[:1])


def test_clipping_the_whole_batch_would_fail_this_test() -> None:
    """If records have opposite gradients, one more record may reverse the direction of the batch."""
    pipe = pipeline("SequenceClassification")
    units: list[Unit] = [[([5 + i, 6, 7 + i], i % 2)] for i in range(8)]
    x: Unit = [([30, 31, 32, 33], 1)]

    def clipped(data: list[Unit]) -> np.ndarray:
        return pipe.sum(data, clipper=BatchClipper(pipe.gradients.dimension, GRID, CLIP, CPU))

    distances = [squared_norm(clipped([*units[:n], x]) - clipped(units[:n])) for n in range(1, len(units))]
    assert max(distances) > GRID**2


def mean_over_tokens_of_the_batch(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The `.loss` of Hugging Face, divided among the records: each part depends on the lengths of the others."""
    logits = forward_logits(model, batch).float()
    labels = batch["labels"][:, 1:]
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
    return losses.sum(dim=1) / (labels != -100).sum()


def test_mean_over_the_tokens_of_the_batch_would_fail_this_test() -> None:
    """The clip is loose, so the terms of the other records visibly shrink when a long record joins."""
    with_mean, with_record_loss = (
        pipeline("CausalLM", dropout=0.0, loss=loss) for loss in (mean_over_tokens_of_the_batch, None)
    )
    units: list[Unit] = [[([5 + i, 6, 7], 0)] for i in range(6)]
    x: Unit = [([9] * 16, 0)]  # the longest record in the same bucket, so it is in the same micro-batch

    def distance(pipe: Pipeline) -> int:
        loose = [GridClipper(pipe.gradients.dimension, GRID, 0.2, CPU) for _ in range(2)]
        return squared_norm(pipe.sum([*units, x], clipper=loose[0]) - pipe.sum(units, clipper=loose[1]))

    assert distance(with_mean) > GRID**2 >= distance(with_record_loss)


def test_unit_contributes_the_same_alone_and_last_of_many() -> None:
    pipe = pipeline("CausalLM")
    x: Record = ([3, 4, 5, 6, 7], 0)
    others: list[Unit] = [[([8 + i] * (3 + i), 0)] for i in range(9)]
    alone = pipe.sum([*others, [x]], order=[9])
    assert np.array_equal(pipe.sum([*others, [x]]) - pipe.sum(others), alone)
