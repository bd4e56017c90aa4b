"""One worker's records as a file: written by `shards` or `pod_shard`, memory-mapped by the worker, read by `batches`.

The file is an uncompressed Arrow IPC file of one record batch with one row for each **unit**: `input_ids` is a list
(one entry for each of the unit's records) of lists of int32 tokens, `target` goes with it (for CausalLM int8, 0 or 1
for each token; for classification int32, one for each record), `length` is the unit's longest record in tokens. So
Arrow's offset buffers are the index from a unit to its records and from a record to its tokens. Reading copies nothing
into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import numpy as np
import pyarrow as pa

TOKENS = pa.large_list(pa.int32())
IGNORE_INDEX = -100
"""The label of a token that is not learned, and of a dummy row: cross entropy ignores it."""


class Target(Enum):
    """What a record's target is. A shard stores each kind under an Arrow type of its own (`arrow`)."""

    LEARNED_TOKENS = "int8 for each token: 1 where the token itself is to be predicted, else 0"
    RECORD_LABEL = "int32 for the record: its class"
    TOKEN_LABELS = "int32 for each token: its class, or -100 where it has none"

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of one record's target."""
        return _ARROW[self]


_ARROW = {
    Target.LEARNED_TOKENS: pa.large_list(pa.int8()),
    Target.RECORD_LABEL: pa.int32(),
    Target.TOKEN_LABELS: pa.large_list(pa.int32()),
}


class Shard:
    """Units 0 to len - 1 and their records, which are numbered over all units. Arrays are views of the mapped file."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        tokens, target = batch.column("input_ids"), batch.column("target")
        self._batch = batch  # keeps the mapped memory alive
        self._units = tokens.offsets.to_numpy()
        self._records = tokens.values.offsets.to_numpy()
        self._tokens = tokens.values.values.to_numpy()
        self.target = next(kind for kind in Target if kind.arrow == target.type.value_type)
        per_record = self.target is Target.RECORD_LABEL
        self._target = (target.values if per_record else target.values.values).to_numpy()
        self.lengths: np.ndarray = batch.column("length").to_numpy()
        """int32 [units]: tokens of each unit's longest record."""

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Map the file at `path`; it must not change while the shard is in use."""
        return cls(pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0))

    def __len__(self) -> int:
        return len(self._units) - 1

    def unit_length(self, unit: int) -> int:
        """Tokens of the unit's longest record."""
        return int(self.lengths[unit])

    def records(self, unit: int) -> range:
        """The numbers of the unit's records."""
        return range(self._units[unit], self._units[unit + 1])

    def tokens(self, record: int) -> np.ndarray:
        """The record's tokens, int32 [length]."""
        tokens: np.ndarray = self._tokens[self._records[record] : self._records[record + 1]]
        return tokens

    def labels(self, record: int) -> np.ndarray | int:
        """The target of the loss for the record's logits: int64 [length], -100 where nothing is learned; or a class.

        It is a function of the record's own tokens and target alone.
        """
        if self.target is Target.RECORD_LABEL:
            return self.label(record)
        if self.target is Target.TOKEN_LABELS:
            return self._of_tokens(record)
        return np.where(self.learned(record), self.tokens(record), IGNORE_INDEX)

    def learned(self, record: int) -> np.ndarray:
        """CausalLM: 1 for each token of the record that is learned, else 0; int8 [length]."""
        return self._of_tokens(record)

    def label(self, record: int) -> int:
        """Classification: the record's class."""
        return int(self._target[record])

    def _of_tokens(self, record: int) -> np.ndarray:
        """The record's targets, if the target has one number for each token."""
        target: np.ndarray = self._target[self._records[record] : self._records[record + 1]]
        return target


def units_table(tokens: pa.Table, starts: np.ndarray) -> pa.RecordBatch:
    """Records in their final order (columns input_ids and target) as one row for each unit.

    Args:
        tokens: the records.
        starts: int64 [units], the first row of each unit, ascending, starting with 0.
    """
    batch = tokens.combine_chunks().to_batches()[0] if len(tokens) else _empty(tokens.schema)
    offsets = pa.array(np.append(starts, len(batch)), pa.int64())
    lengths = np.diff(batch.column("input_ids").offsets.to_numpy()).astype(np.int32)
    longest = np.maximum.reduceat(lengths, starts) if len(starts) else lengths
    columns = {name: pa.LargeListArray.from_arrays(offsets, batch.column(name)) for name in ("input_ids", "target")}
    return pa.RecordBatch.from_pydict({**columns, "length": pa.array(longest, pa.int32())})


def tokens_table(input_ids: Sequence[Sequence[int]], targets: Sequence[Sequence[int] | int], kind: Target) -> pa.Table:
    """Records as the columns input_ids and target; `kind` defines what the targets are."""
    return pa.table({"input_ids": pa.array(input_ids, TOKENS), "target": pa.array(targets, kind.arrow)})


def write(batch: pa.RecordBatch, path: Path) -> None:
    """Write a shard's file, under a temporary name until it is complete."""
    unfinished = path.with_suffix(".unfinished")
    with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    unfinished.replace(path)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
