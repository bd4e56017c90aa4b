"""The data set on its way to the workers: tokenised, named by keyed hashes, and split, on Ray, before training starts.

`prepare` runs in the driver and sees no record. Ray Data's tasks read blocks, tokenise them and write **parts**:
small files, one for each worker and block, under names drawn at random; what comes back is the names. Then one task
for each worker sorts its parts into the file that the worker maps (`shard`). The names that come back, and only they,
count: should Ray run a task twice because a process died, the first run's parts are not named by anyone, and no
record is in the shards twice.

Sorted by unit and record name, a shard depends on the data set and the key alone; training goes on from a checkpoint
with the same units at the same places. Nothing here returns or logs a number of records.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayTaskError

from tensafe_api.resources.job import Spec
from tensorguard.data import keys
from tensorguard.data.errors import DataError
from tensorguard.data.read import plain_error, quiet
from tensorguard.data.recipe import Recipe, columns_of
from tensorguard.data.shard import tokens_table, units_table, write
from tensorguard.data.tokenise import Example, Tokeniser, tokeniser

BATCH_ROWS = 4096
KEY = pa.binary(keys.WIDTH)
Split = Callable[[pa.Table], list[pa.Table]]
"""From raw columns to tokenised records, one table for each worker."""
Row = tuple[bytes, bytes, bool, Example]
"""Names of unit and record, whether the record is a unit by itself, and its tokens."""
_UNREADABLE_USER = "\ufffd"
"""All users whose ids Python cannot hold: one unit together, since each record by itself could split a user."""


@dataclass(frozen=True)
class Prepared:
    """shards: one file for each worker, by rank. digest: of all records in them, keyed (`keys.digest_of`)."""

    shards: tuple[Path, ...]
    digest: str


def prepare(
    dataset: ray.data.Dataset, spec: Spec, tokenizer: Any, *, workers: int, key: bytes, directory: Path
) -> Prepared:
    """Write the private data set's shards into `directory` (made with mode 0700), tokenised as the spec says.

    dataset: what `read` or `from_memory` gave for `columns_of(spec)`. key: secret, at least 16 bytes, the same for
    all runs of one job. Raises DataError where no record is usable, and whatever `tokeniser` and reading raise.
    """
    columns = columns_of(spec)
    recipe = Recipe.from_spec(spec)
    split = partial(split_by_unit, columns=columns, tokenise=tokeniser(tokenizer, recipe), key=key, workers=workers)
    limit = spec.dataset.unit.max_examples_per_unit
    shards = tuple(directory / f"shard-{rank:03d}-of-{workers:03d}.arrow" for rank in range(workers))
    with _parts(dataset, split, directory, "dataset") as parts_of:
        merges = [_merge.remote(parts_of(rank), limit, path) for rank, path in enumerate(shards)]
        results = ray.get(merges)
    if all(empty for empty, _ in results):
        raise DataError(f"spec.dataset: no record is usable: {_why_none(recipe)}")
    return Prepared(shards, keys.digest_of(key, (total for _, total in results)))


def prepare_public(dataset: ray.data.Dataset, spec: Spec, tokenizer: Any, *, directory: Path) -> Path:
    """Write the evaluation set as one file into `directory`, in its own order, each record a unit. See `prepare`."""
    recipe = Recipe.from_spec(spec)
    split = partial(_split_nothing, columns=recipe.columns, tokenise=tokeniser(tokenizer, recipe))
    path = directory / "evaluation.arrow"
    with _parts(dataset, split, directory, "evaluation") as parts_of:
        if ray.get(_concatenate.remote(parts_of(0), path)):
            raise DataError(f"spec.evaluation: no record is usable: {_why_none(recipe)}")
    return path


def split_by_unit(
    table: pa.Table, *, columns: Mapping[str, str], tokenise: Tokeniser, key: bytes, workers: int
) -> list[pa.Table]:
    """Tokenise raw columns and share the records out: table w has those of the units that worker w holds.

    Columns of each table: unit and record (names, 32 bytes), alone (the record is a unit by itself: it has no user),
    and those of `tokens_table`. Records that cannot be used are in none.
    """
    values = {
        role: _values(table.column(name), _UNREADABLE_USER if role == "user" else None)
        for role, name in columns.items()
    }
    users = values.pop("user", None)
    found: list[list[Row]] = [[] for _ in range(workers)]
    for i, example in enumerate(_tokenised(tokenise, values)):
        content = keys.content_of([values[role][i] for role in sorted(values)] + ([users[i]] if users else []))
        if example is None or content is None:
            continue
        user = keys.user_of(users[i]) if users else None
        unit = keys.unit_key(key, user=user, content=content)
        row = (unit, keys.record_key(key, content), user is None, example)
        found[keys.shard_of(unit, workers)].append(row)
    return [_keyed_table(rows, labels="label" in columns) for rows in found]


def merge(parts: list[pa.Table], limit: int | None) -> tuple[pa.RecordBatch, int]:
    """One worker's parts as its shard, and the sum of the names of the records in it.

    Of each user at most `limit` records are kept, those with the smallest names. Each `alone` row is a unit.
    """
    table = pa.concat_tables(parts).sort_by([("unit", "ascending"), ("record", "ascending")])
    unit, alone = _bytes(table.column("unit")), table.column("alone").to_numpy()
    begins = np.append(True, (unit[1:] != unit[:-1]).any(axis=1))[: len(table)] | alone
    starts = np.flatnonzero(begins)
    if limit is not None and len(starts):
        place = np.arange(len(table)) - np.repeat(starts, np.diff(np.append(starts, len(table))))
        kept = np.flatnonzero(place < limit)
        table, starts = table.take(kept), np.flatnonzero(begins[kept])
    return units_table(table.select(["input_ids", "target"]), starts), keys.sum_of(_bytes(table.column("record")))


@contextmanager
def _parts(
    dataset: ray.data.Dataset, split: Split, directory: Path, what: str
) -> Iterator[Callable[[int], list[Path]]]:
    """Write the data set's parts; gives a worker's, in the order of the data set; removes them all at the end."""
    quiet()
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    place = directory / f"parts-{what}"
    shutil.rmtree(place, ignore_errors=True)  # left by a run that was killed
    place.mkdir(mode=0o700)
    try:
        written = dataset.map_batches(_write_parts, fn_args=(split, place), batch_size=None, batch_format="pyarrow")
        written.context.execution_options.preserve_order = True
        written.context.raise_original_map_exception = True
        names = [row["part"] for row in written.take_all()]
        yield lambda worker: [_part(place, name, worker) for name in names]
    except RayTaskError as error:
        raise plain_error(error, f"spec.{what}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _write_parts(block: pa.Table, split: Split, directory: Path) -> Iterator[pa.Table]:
    for start in range(0, len(block), BATCH_ROWS):
        name = secrets.token_hex(16)
        for worker, table in enumerate(split(block.slice(start, BATCH_ROWS))):
            path = _part(directory, name, worker)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        yield pa.table({"part": [name]})


@ray.remote
def _merge(parts: list[Path], limit: int | None, path: Path) -> tuple[bool, int]:
    """Write a worker's shard: (whether it is empty, the sum of its records' names)."""
    if not parts:
        return True, 0
    batch, total = merge([_open(part) for part in parts], limit)
    write(batch, path)
    return batch.num_rows == 0, total


@ray.remote
def _concatenate(parts: list[Path], path: Path) -> bool:
    """Write the public file: whether it is empty."""
    tables = [_open(part) for part in parts]
    rows = sum(map(len, tables))
    if rows:
        write(units_table(pa.concat_tables(tables), np.arange(rows)), path)
    return rows == 0


def _split_nothing(table: pa.Table, *, columns: Mapping[str, str], tokenise: Tokeniser) -> list[pa.Table]:
    examples = _tokenised(tokenise, {role: _values(table.column(name)) for role, name in columns.items()})
    kept = [example for example in examples if example is not None]
    labels = "label" in columns
    return [tokens_table([example.input_ids for example in kept], [example.target for example in kept], labels)]


def _keyed_table(rows: list[Row], labels: bool) -> pa.Table:
    tokens = tokens_table([row[3].input_ids for row in rows], [row[3].target for row in rows], labels)
    named = {
        "unit": pa.array([row[0] for row in rows], KEY),
        "record": pa.array([row[1] for row in rows], KEY),
        "alone": pa.array([row[2] for row in rows], pa.bool_()),
    }
    return pa.table({**named, **dict(zip(tokens.column_names, tokens.columns))})


def _tokenised(tokenise: Tokeniser, values: Mapping[str, list[Any]]) -> list[Example | None]:
    """Tokenise a batch; should a library raise for one record, that record alone is dropped."""
    try:
        return tokenise(values)
    except Exception:
        rows = [dict(zip(values, row)) for row in zip(*values.values())]
        return [_alone(tokenise, row) for row in rows]


def _alone(tokenise: Tokeniser, row: Mapping[str, Any]) -> Example | None:
    try:
        return tokenise({role: [value] for role, value in row.items()})[0]
    except Exception:
        return None


def _values(column: pa.ChunkedArray, instead: str | None = None) -> list[Any]:
    """A column's values; `instead` for those Python cannot hold (text that is no UTF-8, a date beyond its calendar)."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [_value(scalar, instead) for scalar in column]


def _value(scalar: pa.Scalar, instead: str | None) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return instead


def _bytes(column: pa.ChunkedArray) -> np.ndarray:
    """A column of names as uint8 [n, 32]."""
    if not len(column):
        return np.empty((0, keys.WIDTH), np.uint8)
    array = column.combine_chunks()
    return np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, keys.WIDTH)[array.offset : array.offset + len(array)]


def _part(directory: Path, name: str, worker: int) -> Path:
    return directory / f"{name}-{worker:03d}.arrow"


def _open(part: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(part))).read_all()


def _why_none(recipe: Recipe) -> str:
    reasons = "the data set is empty, or every record lacks a value"
    if recipe.labels:
        return f"{reasons} or has a label that is neither a number below {recipe.labels} nor a name of model.labelNames"
    return reasons if recipe.truncate else f"{reasons} or is longer than training.maxLength"
