"""The public evaluation set, looked at every so many steps.

Every worker takes its share of the batches, and the sums travel as plain numbers: the set is public, so nothing is
hidden. A private set is evaluated only for trusted eyes (`observability.privateMetrics: Internal`), never for the
status.
"""

from __future__ import annotations

import struct

import torch

from tensorguard.aggregation.channel import Channel
from tensorguard.data.batches import evaluation_batches
from tensorguard.data.shard import Shard
from tensorguard.models.losses import Metrics, evaluate
from tensorguard.training.unit_gradients import model_inputs

_SUMS = struct.Struct(">dqq")
_NO_CORRECT = -1


def evaluate_on_all_ranks(
    channel: Channel,
    public: Shard,
    model: torch.nn.Module,
    *,
    task: str,
    batch_size: int,
    max_length: int,
    pad_id: int,
    device: torch.device,
) -> tuple[float, float | None]:
    """Mean loss and, for a classifier, accuracy over the whole set: the same on every worker."""
    sums = Metrics(loss=0.0, records=0, correct=None if task == "CausalLM" else 0)
    batches = evaluation_batches(
        public, size=batch_size, max_length=max_length, pad_id=pad_id, rank=channel.rank, workers=channel.size
    )
    model.eval()
    try:
        for batch in batches:
            sums += evaluate(model, model_inputs(batch, device), task)
    finally:
        model.train()
    mine = _SUMS.pack(sums.loss, sums.records, _NO_CORRECT if sums.correct is None else sums.correct)
    losses, counts, rights = zip(*(_SUMS.unpack(message) for message in channel.all_gather(mine)))
    records = sum(counts)
    if not records:
        return float("nan"), None
    return sum(losses) / records, None if _NO_CORRECT in rights else sum(rights) / records
