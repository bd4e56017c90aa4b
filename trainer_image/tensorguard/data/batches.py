"""From units of a shard to micro-batches, whose shapes reveal nothing and whose rows are independent of each other.

In come the units that were drawn for a step. Out come tensors that always have `size` rows. Their length is the
**bucket** (16, 32, 64, ... maxLength: public numbers) of the unit's own longest record. Images have one bucket. So
the shape in which a record is computed does not depend on the other drawn units. The independence of its gradient rests
on this, because kernels differ by shape. Rows that are left at the end of a bucket are dummies, with nothing to learn.
`rows` makes the rows, `models` runs the forward pass, `privacy.gradients` takes each row's gradient, and `training`
adds up the rows of one unit before clipping.

Note for models: a micro-batch whose rows are all exactly as long as the bucket has an attention mask of ones. Libraries
drop such a mask and take another code path, which must be prevented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from tensorguard.data.rows import Rows
from tensorguard.data.shard import IGNORE_INDEX, Shard, Target


@dataclass(frozen=True)
class MicroBatch:
    """m = `size` rows of length L; row i < len(units) is a record, the others are dummies.

    Attributes:
        inputs: what the model reads, by name, each [m, ...] (`rows.Rows`).
        labels: for CausalLM int64 [m, L], not shifted, -100 where nothing is learned; for classification int64 [m],
            -100 in dummy rows.
        units: `units[i]` is the unit of row i in its shard.
        records: `records[i]` is the number of row i among that unit's records, from 0.
    """

    inputs: Mapping[str, torch.Tensor]
    labels: torch.Tensor
    units: tuple[int, ...]
    records: tuple[int, ...]


Row = tuple[int, int, int]  # unit, which of its records, that record's number in the shard


def micro_batches(
    shard: Shard, units: Sequence[int], *, size: int, form: Rows, at_least: int = 0
) -> Iterator[MicroBatch]:
    """All records of `units`, bucket by bucket, and within a bucket in the order of `units`.

    The rows of one unit are consecutive; they may continue in the next micro-batch. `form` makes the rows; its last
    length bounds every record of the shard. Micro-batches of dummies follow until there are `at_least` in all.
    """
    number = 0
    for length, rows in _layout(shard, units, size, form):
        number += 1
        yield _build(shard, rows, size, length, form)
    for _ in range(number, at_least):
        yield _build(shard, [], size, form.lengths[0], form)


def count_micro_batches(shard: Shard, units: Sequence[int], *, size: int, form: Rows) -> int:
    """The number of micro-batches of `units`, without dummies."""
    return sum(1 for _ in _layout(shard, units, size, form))


def evaluation_batches(
    shard: Shard, *, size: int, form: Rows, rank: int, workers: int, same_number: bool = False
) -> Iterator[MicroBatch]:
    """Every `workers`-th micro-batch of a public file, from the `rank`-th on: over all ranks, each record once.

    With `same_number`, a rank that has one micro-batch fewer than others gets one of dummies.
    """
    layout = _layout(shard, range(len(shard)), size, form)
    while group := list(islice(layout, workers)):
        if rank < len(group):
            length, rows = group[rank]
            yield _build(shard, rows, size, length, form)
        elif same_number:
            yield _build(shard, [], size, form.lengths[0], form)


def _layout(shard: Shard, units: Sequence[int], size: int, form: Rows) -> Iterator[tuple[int, list[Row]]]:
    """The rows of each micro-batch, and its length."""
    lengths = np.array(form.lengths)
    drawn = np.asarray(units, dtype=np.int64)
    bucket = np.searchsorted(lengths, shard.lengths[drawn])
    for b in np.unique(bucket):
        rows = (
            (unit, i, record) for unit in drawn[bucket == b].tolist() for i, record in enumerate(shard.records(unit))
        )
        while chunk := list(islice(rows, size)):
            yield int(lengths[b]), chunk


def _build(shard: Shard, rows: list[Row], size: int, length: int, form: Rows) -> MicroBatch:
    per_record = shard.target is Target.RECORD_LABEL
    labels = np.full(size if per_record else (size, length), IGNORE_INDEX, dtype=np.int64)
    for i, (_, _, record) in enumerate(rows):
        own = shard.labels(record)
        if isinstance(own, int):
            labels[i] = own
        else:
            labels[i, : len(own)] = own
    return MicroBatch(
        form.build(shard, [record for _, _, record in rows], size, length),
        torch.from_numpy(labels),
        tuple(unit for unit, _, _ in rows),
        tuple(i for _, i, _ in rows),
    )
