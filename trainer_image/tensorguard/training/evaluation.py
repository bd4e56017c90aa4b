"""Evaluates the model on the evaluation set, with every rank taking part.

Each rank evaluates its share of the batches and sends its sums to all ranks as plain numbers. Nothing is hidden,
because the set is public. A private set is evaluated only for `observability.privateMetrics: Internal`, and its result
never reaches the status.
"""

from __future__ import annotations

import struct

import torch

from tensorguard.aggregation.channel import Channel
from tensorguard.data.batches import evaluation_batches
from tensorguard.data.shard import Shard
from tensorguard.models.losses import EvaluationSums, evaluate_batch
from tensorguard.models.tasks import Task
from tensorguard.training.unit_gradients import model_inputs

MAX_COUNTS = 8
"""How many counts a task may have (`Task.counts`)."""
_SUMS = struct.Struct(f">dqB{MAX_COUNTS}q")
"""Loss, records, the number of counts, and the counts. The messages of an all-gather have one length, also that of a
rank without a batch, which does not know how many counts the task has."""


def evaluate_on_all_ranks(
    channel: Channel,
    public: Shard,
    model: torch.nn.Module,
    *,
    task: Task,
    batch_size: int,
    max_length: int,
    pad_id: int,
    device: torch.device,
) -> tuple[float, dict[str, float]]:
    """The mean loss and the metrics of the task over the whole set: the same on every rank.

    Call on every rank. The loss is NaN where the set has no records.
    """
    sums = EvaluationSums()
    batches = evaluation_batches(
        public, size=batch_size, max_length=max_length, pad_id=pad_id, rank=channel.rank, workers=channel.size
    )
    model.eval()
    try:
        for batch in batches:
            sums += evaluate_batch(model, model_inputs(batch, device), task)
    finally:
        model.train()
    whole = sum(map(_unpack, channel.all_gather(_pack(sums))), start=EvaluationSums())
    if not whole.records:
        return float("nan"), {}
    return whole.loss / whole.records, dict(task.metrics(whole.counts, whole.records))


def _pack(sums: EvaluationSums) -> bytes:
    if len(sums.counts) > MAX_COUNTS:
        raise ValueError(f"a task has at most {MAX_COUNTS} counts (found: {len(sums.counts)}): raise MAX_COUNTS")
    unused = (0,) * (MAX_COUNTS - len(sums.counts))
    return _SUMS.pack(sums.loss, sums.records, len(sums.counts), *sums.counts, *unused)


def _unpack(message: bytes) -> EvaluationSums:
    loss, records, number, *counts = _SUMS.unpack(message)
    return EvaluationSums(loss, records, tuple(counts[:number]))
