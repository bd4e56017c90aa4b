"""Computes the clipped gradients of the drawn units (parts 2 and 3 of a step).

In come the drawn units; out goes the sum of their clipped gradients, inside a `GridClipper`. The records of the units
pass through the model in micro-batches of fixed shape, and each record gives one row of gradients. A unit with one
record is that row. A unit with several records (a user) is the sum of their rows, in the order of the records. It may
continue in the next micro-batch, and at most one unit is open at a time. So the sum of a unit does not depend on where
the micro-batches end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tensorguard.data.batches import MicroBatch, count_micro_batches, micro_batches
from tensorguard.data.rows import Rows
from tensorguard.data.shard import Shard
from tensorguard.models.dropout import record_seeds
from tensorguard.models.sharded_base import BaseSharding
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.stream import KeyedSeeds, SecretStream
from tensorguard.training.stop_signal import StopSignal


class ShardGradients:
    """Computes the gradients of the units of one shard."""

    def __init__(
        self,
        shard: Shard,
        model: torch.nn.Module,
        gradients: PerExampleGradients,
        stream: SecretStream,
        *,
        micro_batch_size: int,
        form: Rows,
        device: torch.device,
        sharding: BaseSharding | None = None,
        keep_losses: bool = False,
    ) -> None:
        """Args:
        form: makes the rows of micro-batches.
        sharding: the ranks that share the base model, all of which must run the same number of passes; None where each
            rank has a whole one.
        stream: gives the seeds of dropout (one per record and step) and of rounding (one per unit and step).
        keep_losses: whether to keep the loss of each record, which is private.
        """
        self._shard = shard
        self._model = model
        self._gradients = gradients
        self._stream = stream
        self._size = micro_batch_size
        self._form = form
        self._device = device
        self._sharding = sharding
        self._losses: list[float] | None = [] if keep_losses else None

    def add_to(self, clipper: GridClipper, units: Sequence[int], stop: StopSignal) -> bool:
        """Add the clipped gradient of each of `units` to `clipper`; return whether all were added.

        It is False if it returned early because `stop` is set. The sum is then incomplete and must not be revealed.
        """
        dropout, rounding = self._stream.keyed_seeds(), self._stream.keyed_seeds()
        open_unit: tuple[int, torch.Tensor] | None = None
        passes = 0
        if self._sharding is not None:
            own = count_micro_batches(self._shard, units, size=self._size, form=self._form)
            passes, stops = self._sharding.largest(own, int(bool(stop)))
            if stops:
                return False
        elif stop:  # before the first micro-batch, whose states may be missing if a stop cut their computation short
            return False
        for batch in micro_batches(self._shard, units, size=self._size, form=self._form, at_least=passes):
            if stop and self._sharding is None:  # a rank that left alone would leave the others waiting for it
                return False
            closed, sums, open_unit = _by_unit(batch.units, self._compute(batch, dropout), open_unit)
            clipper.add(sums, rounding(closed, [0] * len(closed)))
        if open_unit is not None:
            unit, total = open_unit
            clipper.add([total], rounding([unit], [0]))
        return True

    def take_losses(self) -> list[float]:
        """The losses of the records since the last call. They are private; without `keep_losses` there are none."""
        losses, self._losses = self._losses or [], [] if self._losses is not None else None
        return losses

    def _compute(self, batch: MicroBatch, dropout: KeyedSeeds) -> torch.Tensor:
        """One row of gradients for each record that is not padding, float32 [rows, d]."""
        dummies = len(batch.labels) - len(batch.units)
        seeds = dropout(batch.units, batch.records) + [0] * dummies
        with record_seeds(self._model, seeds):
            return self._gradients.compute(model_inputs(batch, self._device), len(batch.units), self._losses)


def model_inputs(batch: MicroBatch, device: torch.device) -> dict[str, torch.Tensor]:
    """The arguments of the model for a micro-batch, on `device`."""
    return {name: tensor.to(device) for name, tensor in {**batch.inputs, "labels": batch.labels}.items()}


def _by_unit(
    units: Sequence[int], rows: torch.Tensor, open_unit: tuple[int, torch.Tensor] | None
) -> tuple[list[int], list[torch.Tensor], tuple[int, torch.Tensor] | None]:
    """The units that are complete, their sums, float32 [d] each, and the unit that is still open.

    Rows are added one at a time, in order. A batched sum could associate differently, depending on how the rows of a
    unit fall into micro-batches. The sum of a unit is in its first row, so `rows` are overwritten. Only the open unit
    is copied, because it outlives them.
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
        open_unit = (unit, row)
    return closed, sums, (open_unit[0], open_unit[1].clone()) if open_unit is not None else None
