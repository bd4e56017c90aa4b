"""Sums of figures that belong to no step: exact, under masks of their own, and those of a private evaluation."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tensorguard.aggregation.channel import AggregationError
from tensorguard.aggregation.pairwise_masks import PairwiseMasks
from tensorguard.aggregation.protocol import AggregationConfig, SecureAggregator
from tensorguard.aggregation.registry import create_aggregator
from tensorguard.aggregation.session import Session
from tensorguard.data.rows import TokenRows
from tensorguard.data.shard import Shard, Target, records_table, units_table
from tensorguard.models.tasks import task_named
from tensorguard.training import evaluation
from tensorguard.training.evaluation import MAX_MEAN_LOSS, evaluate_on_all_ranks
from tests.support.trainer.private_steps import JOB_KEY

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
CPU = torch.device("cpu")
NAMES = ("O", "B-x", "I-x")


def config(channel: Any) -> AggregationConfig:
    session = Session(job="j", attempt=1, incarnation=1, workers=channel.size)
    return AggregationConfig(channel, session, JOB_KEY, grid_bits=14, verify="Standard")


def aggregator(channel: Any) -> SecureAggregator:
    return create_aggregator(config(channel))


def uniform(words: np.ndarray) -> bool:
    """Whether each of the four bytes of the words looks uniform."""
    bytewise = words.view(np.uint8).reshape(-1, 4)
    columns = [np.bincount(bytewise[:, place], minlength=256) for place in range(4)]
    return all(stats.chisquare(counts).pvalue > 1e-6 for counts in columns)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sum_of_figures_is_exact_on_every_worker(size: int, workers: Run) -> None:
    def work(channel: Any) -> list[list[int]]:
        secure = aggregator(channel)
        return [secure.sum_figures(np.array([channel.rank, -7, 10**8 + call])).tolist() for call in range(2)]

    ranks = sum(range(size))
    assert workers(size, work) == [[[ranks, -7 * size, size * (10**8 + call)] for call in range(2)]] * size


def test_no_worker_sends_figures_in_the_clear_or_under_masks_of_a_step(workers: Run) -> None:
    """A mask that is used for two sums reveals the difference of their figures."""
    zeros = np.zeros(1 << 15, dtype=np.int64)
    sent: list[np.ndarray] = []

    def work(channel: Any) -> None:
        secure = aggregator(channel)
        if channel.rank == 0:
            channel.on_vector = lambda sender, vector: sent.append(vector) or vector
        secure.prepare(0, len(zeros))
        secure.sum_figures(zeros)
        secure.sum(0, zeros, zeros, charged_through=2, ledger_head="0" * 64, stop=False)
        secure.sum_figures(zeros)
        secure.sum(1, zeros, zeros, charged_through=2, ledger_head="0" * 64, stop=False)

    workers(3, work)
    assert len(sent) == 3 * 4
    assert all(map(uniform, sent))
    for one, other in combinations(sent, 2):
        assert (one == other).mean() < 1e-3
        assert uniform(one - other)


def test_sums_of_figures_have_numbers_that_no_step_has(workers: Run) -> None:
    numbers: list[int] = []

    class Noting(PairwiseMasks):
        def reveal(self, step: int, local_sum: np.ndarray, noise: np.ndarray) -> np.ndarray:
            numbers.append(step)
            return super().reveal(step, local_sum, noise)

    def work(channel: Any) -> None:
        secure = Noting(config(channel))
        for _ in range(3):
            secure.sum_figures(np.zeros(2, dtype=np.int64))

    workers(1, work)
    assert len(set(numbers)) == 3
    assert all(2**63 <= number < 2**64 for number in numbers)


def test_workers_that_differ_on_the_number_of_figures_reveal_nothing(outcomes: Run) -> None:
    summed: list[int] = []

    def work(channel: Any) -> None:
        secure = aggregator(channel)
        channel.on_vector = lambda sender, vector: summed.append(sender) or vector
        secure.sum_figures(np.zeros(3 + channel.rank, dtype=np.int64))

    for result in outcomes(2, work):
        assert isinstance(result, AggregationError) and "differs on dimension" in str(result)
    assert not summed


def test_protocol_cannot_override_the_checks_of_figures() -> None:
    with pytest.raises(TypeError, match="overrides `sum_figures`"):

        class Unchecked(PairwiseMasks):
            def sum_figures(self, values: np.ndarray) -> np.ndarray:  # type: ignore[misc]
                return values


class Guess(torch.nn.Module):
    """A model that predicts from the token alone, often correctly; the label of token t is t modulo 3."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        guess = torch.where(input_ids % 5 == 0, input_ids + 1, input_ids) % 3
        logits = torch.nn.functional.one_hot(guess, 3) * self.scale
        return type("Output", (), {"logits": logits})


def private_set(records: int) -> Shard:
    generator = np.random.default_rng(records)
    tokens = [generator.integers(0, 200, generator.integers(1, 30)).tolist() for _ in range(records)]
    tags = [[token % 3 for token in each] for each in tokens]
    return Shard(units_table(records_table(tokens, tags, Target.TOKEN_LABELS), np.arange(records)))


def evaluate(
    channel: Any, shard: Shard, scale: float, secure: SecureAggregator | None
) -> tuple[float, dict[str, float]]:
    task = task_named("TokenClassification", labels=3, label_names=NAMES)
    common = {"task": task, "batch_size": 4, "form": TokenRows(32, 0, 99), "device": CPU}
    return evaluate_on_all_ranks(channel, shard, Guess(scale), **common, aggregator=secure)


@pytest.mark.parametrize(("size", "records"), [(1, 25), (2, 25), (5, 25), (4, 3)], ids=str)
def test_masked_evaluation_gives_the_figures_of_a_public_one(size: int, records: int, workers: Run) -> None:
    shard = private_set(records)

    def work(channel: Any) -> Any:
        secure = aggregator(channel)
        return evaluate(channel, shard, 2.0, None), [evaluate(channel, shard, 2.0, secure) for _ in range(2)]

    for (loss, metrics), masked in workers(size, work):
        assert masked == [(pytest.approx(loss, abs=1e-5), metrics)] * 2
        assert metrics["f1"] > 0.2


def test_message_of_a_masked_evaluation_holds_no_sum_of_its_worker(
    workers: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[list[int]] = []
    sent: list[bytes] = []
    masked = SecureAggregator.sum_figures

    def recording(self: SecureAggregator, values: np.ndarray) -> np.ndarray:
        figures.append(values.tolist())
        return masked(self, values)

    monkeypatch.setattr(SecureAggregator, "sum_figures", recording)

    def work(channel: Any) -> None:
        secure = aggregator(channel)
        channel.on_message = lambda sender, message: sent.append(message) or message
        channel.on_vector = lambda sender, vector: sent.append(vector.tobytes()) or vector
        evaluate(channel, private_set(25), 2.0, secure)

    workers(3, work)
    everything = b"".join(sent)
    for loss, *_ in figures:
        assert loss > 1000
        for form in ("<i", ">i", "<q", ">q", ">d"):
            assert struct.pack(form, loss) not in everything


@pytest.mark.parametrize("loss", [math.nan, math.inf, 100 * MAX_MEAN_LOSS], ids=str)
def test_loss_of_a_diverged_model_is_not_a_number(loss: float, workers: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = evaluation.evaluate_batch

    def diverged(*arguments: Any) -> Any:
        sums = real(*arguments)
        return type(sums)(loss * 25, sums.records, sums.counts)

    monkeypatch.setattr(evaluation, "evaluate_batch", diverged)
    for found, metrics in workers(2, lambda channel: evaluate(channel, private_set(25), 1.0, aggregator(channel))):
        assert math.isnan(found)
        assert metrics["f1"] > 0.2
