"""Partition a data set by unit: assign each record to one worker by a keyed hash, then tokenise it.

In come tables of raw columns. Out go tables of tokenised records with their keys (`split_by_unit`), and one worker's
units (`merge`). This module uses neither Ray nor files. `shards` runs it in tasks for all workers of one machine,
`pod_shard` in each pod of a cluster for that pod alone; both produce the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tensafe_api.tasks import image_columns
from tensorguard.data import keys
from tensorguard.data.images import FORMATS, MAX_PIXELS, image_identity
from tensorguard.data.overlap import Overlap, content_digests
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import TEXT, Input, records_table, units_table
from tensorguard.data.tokenise import Example, Tokeniser, plain

KEY = pa.binary(keys.WIDTH)
_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)


@dataclass(frozen=True)
class Partition:
    """Tokenised records.

    Attributes:
        tables: one for each worker.
        total: the sum of the keys of all records that were read, also of other workers' and of unusable ones
            (`keys.dataset_digest`); 0 for public records.
    """

    tables: list[pa.Table]
    total: int = 0


Split = Callable[[pa.Table], Partition]
"""From raw columns to tokenised records."""
Row = tuple[bytes, bytes, bool, Example]
"""Keys of unit and record, whether the record is a unit by itself, and its example."""


def split_by_unit(
    table: pa.Table,
    *,
    columns: Mapping[str, str],
    tokenise: Tokeniser,
    key: bytes,
    workers: int,
    rank: int | None = None,
    overlap: Overlap | None = None,
) -> Partition:
    """Assign the records to workers, then tokenise them: table w has the records of the units of worker w.

    Columns of each table: unit and record (keys, 32 bytes), alone (the record is a unit by itself: it has no user),
    and those of `records_table`. Unusable records are in no table. With `rank` only that worker's records are
    tokenised, and the other tables are empty. All records are added to `overlap`.
    """
    values = {
        role: _values(table.column(name), keys.UNREADABLE_USER if role == "user" else None)
        for role, name in columns.items()
    }
    users = values.pop("user", None)
    identities = _identities(values)
    if overlap is not None:
        overlap.add(identities)
    roles = sorted(values)
    kept: list[int] = []
    named: list[tuple[int, bytes, bytes, bool]] = []
    record_keys: list[bytes] = []
    for i in range(len(table)):
        content = keys.content_of([identities[role][i] for role in roles] + ([users[i]] if users else []))
        if content is None:
            continue
        user = keys.user_of(users[i]) if users else None
        unit = keys.unit_key(key, user=user, content=content)
        worker = keys.shard_of(unit, workers)
        record_keys.append(keys.record_key(key, content))
        if rank in (None, worker):
            kept.append(i)
            named.append((worker, unit, record_keys[-1], user is None))
    found: list[list[Row]] = [[] for _ in range(workers)]
    examples = _tokenised(tokenise, {role: [values[role][i] for i in kept] for role in values}) if kept else []
    for (worker, unit, record, alone), example in zip(named, examples):
        if example is not None:
            found[worker].append((unit, record, alone, example))
    return Partition([_keyed_table(rows, tokenise) for rows in found], keys.record_key_sum(record_keys))


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


def tokenise_public(table: pa.Table, *, columns: Mapping[str, str], tokenise: Tokeniser) -> Partition:
    """Tokenise public records: one table of them all, in their order, with a digest of the content of each."""
    values = {role: _values(table.column(name)) for role, name in columns.items()}
    kept = [(example, i) for i, example in enumerate(_tokenised(tokenise, values)) if example is not None]
    records = _records_table([example for example, _ in kept], tokenise)
    contents = pa.array(content_digests(_identities(values))[[i for _, i in kept]], pa.uint64())
    return Partition([records.append_column("content", contents)])


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


def why_no_record_is_usable(recipe: Recipe) -> str:
    """The possible reasons why no record of a data set is usable."""
    reasons = "the data set is empty, or every record lacks a value"
    if recipe.columns.keys() & set(image_columns()):
        reasons = (
            f"{reasons}, or its image is no complete {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file of at most "
            f"{MAX_PIXELS} pixels (a path alone is not followed),"
        )
    if recipe.labels:
        return f"{reasons} or has a label that is neither a number below {recipe.labels} nor a name of model.labelNames"
    return reasons if recipe.truncate else f"{reasons} or is longer than training.maxLength"


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


def _identities(values: Mapping[str, list[Any]]) -> Mapping[str, list[Any]]:
    """What distinguishes the records: their values, and for an image the digest of its file."""
    images = image_columns()
    return {role: list(map(image_identity, found)) if role in images else found for role, found in values.items()}


def _tokenised(tokenise: Tokeniser, values: Mapping[str, list[Any]]) -> list[Example | None]:
    """Tokenise a batch. If a library raises for one record, only that record is dropped."""
    try:
        return tokenise(values)
    except _STOPS:
        raise
    except BaseException:  # the panic of a tokenizer is no Exception
        rows = [dict(zip(values, row)) for row in zip(*values.values())]
        return [_alone(tokenise, row) for row in rows]


def _alone(tokenise: Tokeniser, row: Mapping[str, Any]) -> Example | None:
    try:
        return tokenise({role: [value] for role, value in row.items()})[0]
    except _STOPS:
        raise
    except BaseException:
        return None


def _values(column: pa.ChunkedArray, fallback: str | None = None) -> list[Any]:
    """A column's values; `fallback` for those that Python cannot hold (text that is not UTF-8, a date out of range)."""
    if isinstance(column.type, pa.BaseExtensionType):  # Ray's columns of arrays and of Python objects
        return [_value(scalar, fallback) for scalar in column]
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (ValueError, OverflowError):
        return [_value(scalar, fallback) for scalar in column]


def _value(scalar: pa.Scalar, fallback: str | None) -> Any:
    try:
        return plain(scalar.as_py())
    except (ValueError, OverflowError, RecursionError):
        return fallback


def _bytes(column: pa.ChunkedArray) -> np.ndarray:
    """A column of keys as uint8 [n, 32]."""
    if not len(column):
        return np.empty((0, keys.WIDTH), np.uint8)
    array = column.combine_chunks()
    return np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, keys.WIDTH)[array.offset : array.offset + len(array)]
