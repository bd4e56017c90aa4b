"""Partition a data set by unit: assign each record to one worker by a keyed hash, then tokenise it.

In come raw tables (`raw_table`). Out go tables of tokenised records with their keys (`split_by_unit`), and one worker's
units (`merge`). This module uses neither Ray nor files. `shards` runs it in tasks for all workers of one machine,
`pod_shard` in each pod of a cluster for that pod alone; both produce the same file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tensafe_api.tasks import image_columns
from tensorguard.data import keys
from tensorguard.data.overlap import Overlap, content_digests
from tensorguard.data.raw_table import EXTRA_COLUMNS
from tensorguard.data.shard import TEXT, Input, records_table, units_table
from tensorguard.data.tokenise import Example, Tokeniser
from tensorguard.data.unusable import Tally, Unusable

KEY = pa.binary(keys.WIDTH)
NO_RECORD = "no record is usable: correct the data, or the fields that name its columns and classes"
_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)


@dataclass(frozen=True)
class Partition:
    """Tokenised records.

    Attributes:
        tables: one for each worker.
        total: the sum of the keys of all records that were read, also of other workers' and of unusable ones
            (`keys.dataset_digest`); 0 for public records.
        tally: the records that cannot be used. With `rank`, those that only a tokeniser finds are of that rank alone.
    """

    tables: list[pa.Table]
    total: int = 0
    tally: Tally = field(default_factory=Tally)


Split = Callable[[pa.Table], Partition]
"""From a raw table to tokenised records."""
Row = tuple[bytes, bytes, bool, Example]
"""Keys of unit and record, whether the record is a unit by itself, and its example."""


def split_by_unit(
    table: pa.Table,
    *,
    tokenise: Tokeniser,
    key: bytes,
    workers: int,
    rank: int | None = None,
    overlap: Overlap | None = None,
) -> Partition:
    """Assign the records to workers, then tokenise them: table w has the records of the units of worker w.

    Columns of each table: unit and record (keys, 32 bytes), alone (the record is a unit by itself: it has no user),
    and those of `records_table`. Unusable records are in no table, but in the tally, as are those without an id where
    there is a column of ids. With `rank` only that worker's records are tokenised, and the other tables are empty. All
    records are added to `overlap`.
    """
    records = _Records(table)
    users = records.values.pop("user", None)
    identities = records.identities()
    if overlap is not None:
        overlap.add(identities)
    roles = sorted(records.values)
    tally = Tally()
    kept: list[int] = []
    named: list[tuple[int, bytes, bytes, bool]] = []
    record_keys: list[bytes] = []
    for i in range(len(table)):
        user = users[i] if users else None
        content = keys.content_of([identities[role][i] for role in roles] + ([user] if users else []))
        unit = keys.unit_key(key, user=user, content=content)
        worker = keys.shard_of(unit, workers)
        if users and user is None:
            tally.add(Unusable.NO_ID, *records.place(i))
        record_keys.append(keys.record_key(key, content))
        if rank in (None, worker):
            kept.append(i)
            named.append((worker, unit, record_keys[-1], user is None))
    found: list[list[Row]] = [[] for _ in range(workers)]
    for (worker, unit, record, alone), example in zip(named, records.examples(tokenise, kept, tally)):
        if example is not None:
            found[worker].append((unit, record, alone, example))
    return Partition([_keyed_table(rows, tokenise) for rows in found], keys.record_key_sum(record_keys), tally)


def merge(parts: list[pa.Table], limit: int | None, inputs: Input = TEXT) -> pa.RecordBatch:
    """One worker's parts as its shard. `inputs`: what a model reads of a record.

    At most `limit` records of each user are kept: those with the smallest keys. Each `alone` row is a unit.
    """
    table = pa.concat_tables(parts).sort_by([("unit", "ascending"), ("record", "ascending")])
    unit, alone = _bytes(table.column("unit")), table.column("alone").to_numpy()
    begins = np.append(True, (unit[1:] != unit[:-1]).any(axis=1))[: len(table)] | alone
    starts = np.flatnonzero(begins)
    if limit is not None and len(starts):
        place = np.arange(len(table)) - np.repeat(starts, np.diff(np.append(starts, len(table))))
        kept = np.flatnonzero(place < limit)
        table, starts = table.take(kept), np.flatnonzero(begins[kept])
    return units_table(table.select([inputs.column, "target"]), starts, inputs)


def tokenise_public(table: pa.Table, *, tokenise: Tokeniser) -> Partition:
    """Tokenise public records: one table of them all, in their order, with a digest of the content of each."""
    records, tally = _Records(table), Tally()
    found = enumerate(records.examples(tokenise, range(len(table)), tally))
    kept = [(example, i) for i, example in found if example is not None]
    contents = pa.array(content_digests(records.identities())[[i for _, i in kept]], pa.uint64())
    tokenised = _records_table([example for example, _ in kept], tokenise)
    return Partition([tokenised.append_column("content", contents)], tally=tally)


def concatenate(tables: list[pa.Table], inputs: Input = TEXT) -> tuple[pa.RecordBatch, np.ndarray] | None:
    """Public records as units, one for each record, in their order, and the digests of their contents, uint64 [n].

    None if there are none.
    """
    rows = sum(map(len, tables))
    if not rows:
        return None
    table = pa.concat_tables(tables)
    return units_table(table, np.arange(rows), inputs), table.column("content").to_numpy()


def no_records(tokenise: Tokeniser) -> pa.Table:
    """A part without a record. `merge` makes the shard of a worker without units from it."""
    return _keyed_table([], tokenise)


def _records_table(examples: list[Example], tokenise: Tokeniser) -> pa.Table:
    inputs, targets = [example.inputs for example in examples], [example.target for example in examples]
    return records_table(inputs, targets, tokenise.target, tokenise.inputs)


def _keyed_table(rows: list[Row], tokenise: Tokeniser) -> pa.Table:
    records = _records_table([row[3] for row in rows], tokenise)
    named = {
        "unit": pa.array([row[0] for row in rows], KEY),
        "record": pa.array([row[1] for row in rows], KEY),
        "alone": pa.array([row[2] for row in rows], pa.bool_()),
    }
    return pa.table({**named, **dict(zip(records.column_names, records.columns))})


class _Records:
    """The records of a raw table. `values`: by role, as `raw_table` converted them."""

    def __init__(self, table: pa.Table) -> None:
        roles = [name for name in table.column_names if name not in EXTRA_COLUMNS]
        self.values: dict[str, list[Any]] = {role: table.column(role).to_pylist() for role in roles}
        self._faults, self._files, self._at = (table.column(name).to_pylist() for name in EXTRA_COLUMNS)

    def place(self, i: int) -> tuple[str, int]:
        """The file of a record, and its place in it."""
        return self._files[i], self._at[i]

    def identities(self) -> Mapping[str, list[Any]]:
        """What distinguishes the records: their values, and for an image the digest of its file."""
        images = image_columns()
        return {role: list(map(_digest, found)) if role in images else found for role, found in self.values.items()}

    def examples(self, tokenise: Tokeniser, kept: Sequence[int], tally: Tally) -> list[Example | None]:
        """The examples of the records `kept`; None for one that is left out, and for an unusable one, which is counted.

        All unusable values are counted, also those of records that are not in `kept`.
        """
        for i, fault in enumerate(self._faults):
            if fault is not None:
                tally.add(Unusable(fault), *self.place(i))
        usable = [i for i in kept if self._faults[i] is None]
        found = tokenised(tokenise, {role: [column[i] for i in usable] for role, column in self.values.items()})
        examples: dict[int, Example] = {}
        for i, example in zip(usable, found if usable else ()):
            if isinstance(example, Unusable):
                tally.add(example, *self.place(i))
            elif example is not None:
                examples[i] = example
        return [examples.get(i) for i in kept]


def _digest(image: bytes | None) -> str | None:
    return None if image is None else f"sha256:{hashlib.sha256(image).hexdigest()}"


def tokenised(tokenise: Tokeniser, values: Mapping[str, list[Any]]) -> list[Example | Unusable | None]:
    """Tokenise a batch. If a library raises for one record, only that record cannot be used."""
    try:
        return tokenise(values)
    except _STOPS:
        raise
    except BaseException:  # the panic of a tokenizer is no Exception
        rows = [dict(zip(values, row)) for row in zip(*values.values())]
        return [_alone(tokenise, row) for row in rows]


def _alone(tokenise: Tokeniser, row: Mapping[str, Any]) -> Example | Unusable | None:
    try:
        return tokenise({role: [value] for role, value in row.items()})[0]
    except _STOPS:
        raise
    except BaseException:
        return Unusable.NOT_TOKENISED


def _bytes(column: pa.ChunkedArray) -> np.ndarray:
    """A column of keys as uint8 [n, 32]."""
    if not len(column):
        return np.empty((0, keys.WIDTH), np.uint8)
    array = column.combine_chunks()
    return np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, keys.WIDTH)[array.offset : array.offset + len(array)]
