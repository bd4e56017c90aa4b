"""Steps 2 and 3: from drawn units to their clipped sum.

The drawn units' records pass through the model in micro-batches of fixed shape. A unit of one record is a row; a unit
of several (a user) is the sum of its rows, in the order of its records, and may go on from one micro-batch into the
next: one unit is open at a time. So a unit's sum does not depend on where the micro-batches happen to end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tensorguard.data.batches import MicroBatch, micro_batches
from tensorguard.data.shard import Shard
from tensorguard.models.dropout import record_seeds
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.stream import KeyedSeeds, SecretStream
from tensorguard.training.stop_signal import StopSignal


class ShardGradients:
    """The gradients of one shard's units."""

    def __init__(
        self,
        shard: Shard,
        model: torch.nn.Module,
        gradients: PerExampleGradients,
        stream: SecretStream,
        *,
        micro_batch_size: int,
        max_length: int,
        pad_id: int,
        device: torch.device,
    ) -> None:
        """Args: stream: for dropout and rounding, whose seeds belong to one record or unit in one step."""
        self._shard = shard
        self._model = model
        self._gradients = gradients
        self._stream = stream
        self._size = micro_batch_size
        self._max_length = max_length
        self._pad_id = pad_id
        self._device = device

    def add_to(self, clipper: GridClipper, units: Sequence[int], stop: StopSignal) -> None:
        """Add the clipped gradient of each of `units`; returns early where `stop` is raised."""
        dropout, rounding = self._stream.keyed_seeds(), self._stream.keyed_seeds()
        open_unit: tuple[int, torch.Tensor] | None = None
        for batch in micro_batches(
            self._shard, units, size=self._size, max_length=self._max_length, pad_id=self._pad_id
        ):
            if stop:
                return
            closed, sums, open_unit = _by_unit(batch.units, self._compute(batch, dropout), open_unit)
            clipper.add(sums, rounding(closed, [0] * len(closed)))
        if open_unit is not None:
            unit, total = open_unit
            clipper.add(total.unsqueeze(0), rounding([unit], [0]))

    def _compute(self, batch: MicroBatch, dropout: KeyedSeeds) -> torch.Tensor:
        """One row of gradients for each real record, float32 [rows, d]."""
        dummies = len(batch.input_ids) - len(batch.units)
        seeds = dropout(batch.units, batch.records) + [0] * dummies
        with record_seeds(self._model, seeds):
            return self._gradients.compute(model_inputs(batch, self._device), len(batch.units))


def model_inputs(batch: MicroBatch, device: torch.device) -> dict[str, torch.Tensor]:
    """A micro-batch as the model takes it."""
    return {
        "input_ids": batch.input_ids.to(device),
        "attention_mask": batch.attention_mask.to(device),
        "labels": batch.labels.to(device),
    }


def _by_unit(
    units: Sequence[int], rows: torch.Tensor, open_unit: tuple[int, torch.Tensor] | None
) -> tuple[list[int], torch.Tensor, tuple[int, torch.Tensor] | None]:
    """The units that `rows` bring to an end with their sums, [closed, d], and the one that is still open.

    Rows are added one at a time, in order: batched sums may associate differently as a unit's rows fall into
    micro-batches.
    """
    closed: list[int] = []
    sums: list[torch.Tensor] = []
    for unit, row in zip(units, rows):
        if open_unit is not None and open_unit[0] == unit:
            open_unit[1].add_(row)
            continue
        if open_unit is not None:
            closed.append(open_unit[0])
            sums.append(open_unit[1])
        open_unit = (unit, row.clone())
    return closed, torch.stack(sums) if sums else rows[:0], open_unit
