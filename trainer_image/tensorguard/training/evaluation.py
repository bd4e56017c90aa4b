"""Evaluates the model on the evaluation set, with every rank taking part.

Each rank evaluates its share of the batches. The ranks send the sums of a public set as plain numbers: nothing is
hidden. A private set is evaluated only for `observability.privateMetrics: Internal`, and its result never reaches the
status. Its sums are added by the secure aggregation, so that neither another rank nor the network sees more than their
total, which has no noise.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import torch

from tensorguard.aggregation.channel import Channel
from tensorguard.aggregation.protocol import SecureAggregator
from tensorguard.data.batches import evaluation_batches
from tensorguard.data.rows import Rows
from tensorguard.data.shard import Shard
from tensorguard.models.batch_losses import EvaluationSums, evaluate_batch
from tensorguard.models.output_head import OutputHead
from tensorguard.models.tasks import Task
from tensorguard.training.unit_gradients import model_inputs

MAX_COUNTS = 8
"""How many counts a task may have (`Task.counts`)."""
MAX_MEAN_LOSS = 64.0
"""One rank's share of the mean loss (nats) up to which the masked sum is exact. A model beyond it has diverged."""
_SUMS = struct.Struct(f">dqB{MAX_COUNTS}q")
"""Loss, records, the number of counts, and the counts. The messages of an all-gather have one length, also that of a
rank without a batch, which does not know how many counts the task has."""
_INT32_MAX = 2**31 - 1


def evaluate_on_all_ranks(
    channel: Channel,
    evaluation: Shard,
    model: torch.nn.Module,
    *,
    task: Task,
    batch_size: int,
    form: Rows,
    device: torch.device,
    head: OutputHead | None = None,
    same_number: bool = False,
    aggregator: SecureAggregator | None = None,
) -> tuple[float, dict[str, float]]:
    """The mean loss and the metrics of the task over the whole set: the same on every rank.

    Call on every rank. The loss is NaN where the set has no records.

    Args:
        form: makes the rows of micro-batches.
        head: computes the losses without the logits; None: from the logits.
        same_number: whether every rank must run the same number of batches, because the ranks share the base model.
        aggregator: adds the sums of a private set; None for a public set, whose sums need no protection.
    """
    sums = EvaluationSums()
    batches = evaluation_batches(
        evaluation, size=batch_size, form=form, rank=channel.rank, workers=channel.size, same_number=same_number
    )
    model.eval()
    try:
        for batch in batches:
            sums += evaluate_batch(model, model_inputs(batch, device), task, head)
    finally:
        model.train()
    if aggregator is None:
        whole = sum(map(_unpack, channel.all_gather(_pack(sums))), start=EvaluationSums())
    else:
        whole = _masked_total(aggregator, sums, len(evaluation), channel.size)
    if not whole.records:
        return float("nan"), {}
    return whole.loss / whole.records, dict(task.metrics(whole.counts, whole.records))


def _masked_total(aggregator: SecureAggregator, sums: EvaluationSums, set_size: int, ranks: int) -> EvaluationSums:
    """The total of all ranks' sums, of which no rank learns more.

    The loss is a multiple of 1/`grid` of the mean over the set: the total of all ranks fits an int32. A rank whose loss
    is not finite or too large marks it as such, and the total is NaN.

    Args:
        set_size: number of records of the whole evaluation set, at least 1.
        ranks: number of ranks.
    """
    grid = _INT32_MAX // (math.ceil(MAX_MEAN_LOSS) * ranks)
    mean = sums.loss / set_size
    known = math.isfinite(mean) and abs(mean) <= MAX_MEAN_LOSS
    figures = [
        round(mean * grid) if known else 0,
        0 if known else 1,
        sums.records,
        1 if sums.counts else 0,
        len(sums.counts),
        *_padded(sums.counts),
    ]
    total = aggregator.sum_figures(np.array(figures, dtype=np.int64))
    loss, unknown, records, ranks_with_counts, lengths, *counts = total.tolist()
    number = lengths // ranks_with_counts if ranks_with_counts else 0
    return EvaluationSums(math.nan if unknown else loss / grid * set_size, records, tuple(counts[:number]))


def _pack(sums: EvaluationSums) -> bytes:
    return _SUMS.pack(sums.loss, sums.records, len(sums.counts), *_padded(sums.counts))


def _padded(counts: tuple[int, ...]) -> tuple[int, ...]:
    if len(counts) > MAX_COUNTS:
        raise ValueError(f"a task has at most {MAX_COUNTS} counts (found: {len(counts)}): raise MAX_COUNTS")
    return (*counts, *[0] * (MAX_COUNTS - len(counts)))


def _unpack(message: bytes) -> EvaluationSums:
    loss, records, number, *counts = _SUMS.unpack(message)
    return EvaluationSums(loss, records, tuple(counts[:number]))
