"""The results of an evaluation are the same for any number of workers, and equal to an independent count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tensorguard.data.rows import TokenRows
from tensorguard.data.shard import Shard, Target, records_table, units_table
from tensorguard.models.batch_losses import EvaluationSums
from tensorguard.models.tasks import task_named
from tensorguard.training.evaluation import (
    MAX_COUNTS,
    MAX_MEAN_LOSS,
    _masked_total,
    _padded,
    evaluate_on_all_ranks,
)
from tests.support.trainer.entity_f1 import entity_f1

NAMES = ("O", "B-x", "I-x")
CPU = torch.device("cpu")


class Guess(torch.nn.Module):
    """A model that predicts from the token alone, often correctly; the label of token t is t modulo 3."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        guess = torch.where(input_ids % 5 == 0, input_ids + 1, input_ids) % 3
        return type("Output", (), {"logits": torch.nn.functional.one_hot(guess, 3).float()})


class Recorded:
    """A channel that returns the messages of all ranks from an earlier pass."""

    def __init__(self, rank: int, size: int, messages: list[bytes]) -> None:
        self.rank, self.size, self.sent, self._messages = rank, size, b"", messages

    def all_gather(self, message: bytes) -> list[bytes]:
        self.sent = message
        return self._messages or [message]


def evaluate(shard: Shard, size: int) -> list[tuple[float, dict[str, float]]]:
    """The results of all ranks."""
    messages: list[bytes] = []
    results = []
    for _ in range(2):
        channels = [Recorded(rank, size, messages) for rank in range(size)]
        task = task_named("TokenClassification", labels=3, label_names=NAMES)
        common = {"task": task, "batch_size": 4, "form": TokenRows(32, 0, 99), "device": CPU}
        results = [evaluate_on_all_ranks(channel, shard, Guess(), **common) for channel in channels]
        messages = [channel.sent for channel in channels]
        assert len({len(message) for message in messages}) == 1, "an all-gather needs messages of one length"
    return results


def shard_of(records: list[list[int]]) -> Shard:
    targets = [[-100 if i % 4 == 3 else token % 3 for i, token in enumerate(tokens)] for tokens in records]
    return Shard(units_table(records_table(records, targets, Target.TOKEN_LABELS), np.arange(len(records))))


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_counts_of_workers_add_up_to_the_entity_f1_of_the_whole_set(workers: int) -> None:
    generator = np.random.default_rng(0)
    records = [generator.integers(0, 200, generator.integers(1, 30)).tolist() for _ in range(25)]
    shard = shard_of(records)
    words = [[token for i, token in enumerate(tokens) if i % 4 != 3] for tokens in records]
    expected = [[NAMES[token % 3] for token in tokens] for tokens in words]
    predicted = [[NAMES[(token + 1 if token % 5 == 0 else token) % 3] for token in tokens] for tokens in words]
    results = evaluate(shard, workers)
    assert all(result == results[0] for result in results)
    loss, metrics = results[0]
    assert loss == pytest.approx(evaluate(shard, 1)[0][0])
    assert metrics == {"f1": pytest.approx(entity_f1(expected, predicted))}
    assert 0.2 < metrics["f1"] < 0.9


def test_workers_without_a_batch_change_nothing() -> None:
    shard = shard_of([[1, 2, 4]])
    assert evaluate(shard, 5) == [(evaluate(shard, 1)[0][0], {"f1": 1.0})] * 5


class Summed:
    """Secure aggregation of several ranks with equal figures, in int32 as the real one."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def sum_figures(self, values: np.ndarray) -> np.ndarray:
        assert values.dtype == np.int64
        total = values * self.ranks
        assert np.abs(total).max() <= np.iinfo(np.int32).max
        return total


def masked_total(sums: EvaluationSums, set_size: int, ranks: int) -> EvaluationSums:
    aggregator: Any = Summed(ranks)
    return _masked_total(aggregator, sums, set_size, ranks)


@pytest.mark.parametrize("ranks", [1, 2, 256])
def test_masked_total_holds_the_largest_loss_of_every_rank(ranks: int) -> None:
    total = masked_total(EvaluationSums(MAX_MEAN_LOSS * 100, 10, (3, 4)), 100, ranks)
    assert total.loss == pytest.approx(MAX_MEAN_LOSS * 100 * ranks, rel=1e-4)
    assert (total.records, total.counts) == (10 * ranks, (3 * ranks, 4 * ranks))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, MAX_MEAN_LOSS * 100.01])
def test_masked_total_of_an_unknown_or_too_large_loss_is_nan(loss: float) -> None:
    total = masked_total(EvaluationSums(loss, 10, (3,)), 100, 2)
    assert math.isnan(total.loss) and total.counts == (6,)


def test_masked_total_without_counts_has_none() -> None:
    assert masked_total(EvaluationSums(1.0, 2), 4, 3).counts == ()
    assert masked_total(EvaluationSums(1.0, 2), 4, 3).loss == pytest.approx(3.0, rel=1e-6)


def test_task_has_at_most_the_counts_of_a_message() -> None:
    assert _padded(tuple(range(MAX_COUNTS))) == tuple(range(MAX_COUNTS))
    assert _padded((5,)) == (5, *[0] * (MAX_COUNTS - 1))
    with pytest.raises(ValueError, match="at most 8 counts"):
        _padded((0,) * (MAX_COUNTS + 1))
