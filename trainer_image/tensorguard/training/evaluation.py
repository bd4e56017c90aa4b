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

_SUMS = struct.Struct(">dq")
_COUNT = struct.Struct(">q")


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
    return _SUMS.pack(sums.loss, sums.records) + b"".join(map(_COUNT.pack, sums.counts))


def _unpack(message: bytes) -> EvaluationSums:
    loss, records = _SUMS.unpack_from(message)
    return EvaluationSums(loss, records, tuple(count for (count,) in _COUNT.iter_unpack(message[_SUMS.size :])))
