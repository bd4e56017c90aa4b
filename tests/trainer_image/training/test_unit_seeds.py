"""Which seeds and rows each unit gets, and what is kept of its losses, with recorded parts in place of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tensorguard.data.rows import TokenRows
from tensorguard.privacy.stream import SecretStream
from tensorguard.training import unit_gradients
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients
from tests.support.trainer.pipeline import CPU, LENGTH, WORDS, Unit, make_shard

USERS: list[Unit] = [
    [([1, 2], 0)],
    [([3, 4, 5], 1)] * 3,
    [([6], 0), ([7, 8], 1)],
    [([9], 1)],
]
"""Units of one, three, two and one records."""
KEY = bytes(range(32))


class Parts:
    """A model, its gradients and a clipper. The gradient of a record is its label plus one, twice."""

    def __init__(self) -> None:
        self.seeds: list[list[int]] = []
        self.models: list[Any] = []
        self.added: list[tuple[list[float], list[int]]] = []
        self.losses: list[list[float] | None] = []

    @contextmanager
    def record_seeds(self, model: Any, seeds: list[int]) -> Iterator[None]:
        self.models.append(model)
        self.seeds.append(seeds)
        yield

    def compute(self, inputs: dict[str, torch.Tensor], rows: int, losses: list[float] | None) -> torch.Tensor:
        assert {tensor.device for tensor in inputs.values()} == {CPU}
        self.losses.append(losses)
        if losses is not None:
            losses.extend([0.5] * rows)
        return (inputs["labels"][:rows] + 1).float().unsqueeze(1).expand(rows, 2).clone()

    def add(self, sums: list[torch.Tensor], seeds: list[int]) -> None:
        assert [each.shape for each in sums] == [(2,)] * len(seeds)
        if seeds:
            self.added.append(([each[0].item() for each in sums], seeds))


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    made = Parts()
    monkeypatch.setattr(unit_gradients, "record_seeds", made.record_seeds)
    return made


def gradients_of(parts: Parts, *, size: int = 4, keep_losses: bool = False) -> ShardGradients:
    any_parts: Any = parts
    model: Any = "model"
    return ShardGradients(
        make_shard(USERS, "SequenceClassification"),
        model,
        any_parts,
        SecretStream(KEY),
        micro_batch_size=size,
        form=TokenRows(LENGTH, 0, WORDS),
        device=CPU,
        **({"keep_losses": True} if keep_losses else {}),
    )


def step(gradients: ShardGradients, parts: Parts, units: list[int]) -> None:
    clipper: Any = parts
    gradients.add_to(clipper, units, StopSignal())


def test_each_unit_is_the_sum_of_its_records_with_a_seed_of_its_own(parts: Parts) -> None:
    step(gradients_of(parts), parts, [0, 1, 2, 3])
    sums = [value for values, _ in parts.added for value in values]
    assert sums == [1.0, 6.0, 3.0, 2.0]
    stream = SecretStream(KEY)
    dropout, rounding = stream.keyed_seeds(), stream.keyed_seeds()
    assert [seed for _, seeds in parts.added for seed in seeds] == rounding([0, 1, 2, 3], [0] * 4)
    records = dropout([0, 1, 1, 1, 2, 2, 3], [0, 0, 1, 2, 0, 1, 0])
    assert [seed for seeds in parts.seeds for seed in seeds] == [*records, 0], "the last row is a dummy"
    assert set(parts.models) == {"model"} and {len(seeds) for seeds in parts.seeds} == {4}


def test_seeds_of_a_unit_do_not_depend_on_the_others(parts: Parts) -> None:
    step(gradients_of(parts), parts, [1])
    step(gradients_of(parts), parts, [0, 1, 3])
    (_, (alone,)) = parts.added[0]
    together = [seed for _, seeds in parts.added[1:] for seed in seeds]
    assert together[1] == alone
    assert parts.seeds[0][:3] == parts.seeds[1][1:4]


def test_every_step_has_seeds_of_its_own(parts: Parts) -> None:
    gradients = gradients_of(parts)
    for _ in range(2):
        step(gradients, parts, [3])
    (_, first), (_, second) = parts.added
    assert first != second and parts.seeds[0][0] != parts.seeds[1][0]


def test_unit_that_fills_the_last_micro_batch_is_added_once(parts: Parts) -> None:
    for size in (1, 2, 3, 7, 8):
        parts.added.clear()
        step(gradients_of(parts, size=size), parts, [0, 1, 2, 3])
        assert [value for values, _ in parts.added for value in values] == [1.0, 6.0, 3.0, 2.0]


def test_nothing_is_added_for_an_empty_draw(parts: Parts) -> None:
    step(gradients_of(parts), parts, [])
    assert parts.added == [] and parts.seeds == []


def test_losses_are_kept_only_on_request_and_until_they_are_taken(parts: Parts) -> None:
    hidden, kept = gradients_of(parts), gradients_of(parts, keep_losses=True)
    for gradients in (hidden, kept):
        step(gradients, parts, [1, 3])
    assert hidden.take_losses() == [] and parts.losses[0] is None
    assert kept.take_losses() == [0.5] * 4
    assert kept.take_losses() == []
    step(kept, parts, [0])
    assert kept.take_losses() == [0.5], "those of the next step are kept as well"
    step(hidden, parts, [0])
    assert hidden.take_losses() == []


def test_stop_request_adds_nothing_more(parts: Parts) -> None:
    clipper: Any = parts
    stop = StopSignal()
    stop.request()
    gradients_of(parts).add_to(clipper, [0, 1, 2], stop)
    assert parts.added == [] and parts.seeds == []
