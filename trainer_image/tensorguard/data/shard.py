"""One worker's records as a file: written by `shards` or `pod_shard`, memory-mapped by the worker, read by `batches`.

The file is an uncompressed Arrow IPC file of one record batch with one row for each **unit**. The first column is the
input: for text, `input_ids` is a list (one entry for each of the unit's records) of lists of int32 tokens; for
images, `pixels` is a list of byte strings of one length, each of them uint8 [3, height, width]. `target` belongs to
it (for CausalLM int8, 0 or 1 for each token; for classification int32, one for each record). `length` is the unit's
longest record in tokens, and 1 for images. So Arrow's offset buffers are the index from a unit to its records and
from a record to its tokens. Reading copies nothing into memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

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


class Input(ABC):
    """What a model reads of a record, and how a shard stores it. `column`: its column in a shard."""

    column: ClassVar[str]

    @property
    def bytes(self) -> int:
        """The bytes of one record, roughly; 1 where they do not matter."""
        return 1

    @property
    @abstractmethod
    def arrow(self) -> pa.DataType:
        """The Arrow type of one record's input."""

    @abstractmethod
    def lengths(self, records: Any) -> np.ndarray:
        """The length of each record of an Arrow array of this type, int32 [n]."""


@dataclass(frozen=True)
class Tokens(Input):
    """Text: the numbers of its tokens, int32 [length]. Records differ in length."""

    column = "input_ids"

    @property
    def arrow(self) -> pa.DataType:
        return TOKENS

    def lengths(self, records: Any) -> np.ndarray:
        lengths: np.ndarray = np.diff(records.offsets.to_numpy()).astype(np.int32)
        return lengths


@dataclass(frozen=True)
class Pixels(Input):
    """An image: uint8 [3, height, width] in RGB, row by row. All images have one size, so their length is 1."""

    height: int
    width: int

    column = "pixels"

    @property
    def arrow(self) -> pa.DataType:
        return pa.binary(self.bytes)

    @property
    def bytes(self) -> int:
        """The bytes of one image."""
        return 3 * self.height * self.width

    def lengths(self, records: Any) -> np.ndarray:
        return np.ones(len(records), np.int32)


TEXT = Tokens()


class Shard:
    """Units 0 to len - 1 and their records, which are numbered over all units. Arrays are views of the mapped file."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        inputs, target = batch.column(0), batch.column("target")
        self._batch = batch  # keeps the mapped memory alive
        self._units = inputs.offsets.to_numpy()
        if pa.types.is_fixed_size_binary(inputs.type.value_type):
            stored, width = inputs.values, inputs.type.value_type.byte_width
            buffer = np.frombuffer(stored.buffers()[1] or b"", np.uint8)
            self._pixels = buffer[stored.offset * width :][: len(stored) * width].reshape(-1, width)
        else:
            self._records = inputs.values.offsets.to_numpy()
            self._tokens = inputs.values.values.to_numpy()
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

    def pixels(self, record: int) -> np.ndarray:
        """The record's image, uint8 [3 * height * width] (`Pixels`)."""
        pixels: np.ndarray = self._pixels[record]
        return pixels

    @property
    def number_of_records(self) -> int:
        """The number of records of all units."""
        return int(self._units[-1])

    def token_starts(self) -> np.ndarray | None:
        """Where each record's tokens begin among those of all records, int64 [records + 1]; None for images."""
        return None if hasattr(self, "_pixels") else self._records - self._records[0]

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


def units_table(records: pa.Table, starts: np.ndarray, kind: Input = TEXT) -> pa.RecordBatch:
    """Records in their final order (columns of `records_table`) as one row for each unit.

    Args:
        records: the records.
        starts: int64 [units], the first row of each unit, ascending, starting with 0.
        kind: what a model reads of a record.
    """
    batch = records.combine_chunks().to_batches()[0] if len(records) else _empty(records.schema)
    offsets = pa.array(np.append(starts, len(batch)), pa.int64())
    lengths = kind.lengths(batch.column(kind.column))
    longest = np.maximum.reduceat(lengths, starts) if len(starts) else lengths
    columns = {name: pa.LargeListArray.from_arrays(offsets, batch.column(name)) for name in (kind.column, "target")}
    return pa.RecordBatch.from_pydict({**columns, "length": pa.array(longest, pa.int32())})


def records_table(
    inputs: Sequence[Sequence[int] | bytes], targets: Sequence[Sequence[int] | int], target: Target, kind: Input = TEXT
) -> pa.Table:
    """Records as the columns of their inputs and targets; `kind` and `target` define what these are."""
    return pa.table({kind.column: pa.array(inputs, kind.arrow), "target": pa.array(targets, target.arrow)})


def write(batch: pa.RecordBatch, path: Path) -> None:
    """Write a shard's file, under a temporary name until it is complete."""
    unfinished = path.with_suffix(".unfinished")
    with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    unfinished.replace(path)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
