"""From an address, or from data in memory, to a Ray Data set of raw tables.

`read` takes a URI: one Ray task lists the files and reads column names and types, never values. The resulting Ray Data
set reads its fragments lazily, in the same tasks that tokenise them (Ray Data fuses the two), so that no record passes
through the driver's process. `from_memory` takes a data set of the Python API. Each row of the result is a raw table
(`raw_table`), packed (`packed`). `shards.prepare` consumes it.

What a job reads is a `Wanted`: a mapping from role (prompt, completion, messages, tools, text, label, user) to the
column's name, so that an error can name the manifest's field.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayTaskError

from tensafe_api.resources.training import Storage
from tensorguard.data.arrow_rows import arrow_rows, schema_columns
from tensorguard.data.columns import FileColumns, check_types
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.files import Source
from tensorguard.data.listing import inspect
from tensorguard.data.memory import memory_tables, place_in_memory
from tensorguard.data.packed import packed
from tensorguard.data.raw_table import NO_PLACE, Wanted, raw_table
from tensorguard.data.records import ADVICE, EMPTY, MEMORY_KINDS
from tensorguard.storage import filesystem_options

MAX_TASKS = 512


@dataclass(frozen=True)
class Reading:
    """The raw tables of a data set, and where its records are.

    Attributes:
        tables: raw tables, packed; they are read when they are used.
        place: of a record in words, from its file and place in a raw table.
    """

    tables: ray.data.Dataset
    place: Callable[[str, int], str]


def read(
    uri: str,
    wanted: Wanted,
    *,
    format: str | None = None,  # noqa: A002 - the name of the manifest's field
    storage: Storage | None = None,
    base_dir: Path | None = None,
    report: Callable[[str], None] | None = None,
) -> Reading:
    """Raw tables of the files at `uri`, packed, lazily.

    Args:
        uri: a path (relative to base_dir), `file://`, or another scheme (`s3://`, `hf://datasets/...`); a file, a
            directory (with its subdirectories, without names that start with "." or "_") or a glob (with such names).
        wanted: what the job reads of each record.
        format: the name of a format, for files whose names have no known ending.
        storage: endpoint and region; credentials come from the environment.
        base_dir: the folder of relative paths; None: the working directory.
        report: called with a sentence for users: how many files are read, and which ones are left out.

    Raises:
        DataError: unreadable, no files, a missing column, or a type that does not fit the column's role.
    """
    silence_ray_data()
    protocol, options = filesystem_options(uri, storage)
    if protocol == "file":
        path = Path(uri.removeprefix("file://")).expanduser()
        uri = str(path if path.is_absolute() or base_dir is None else Path(base_dir) / path)
    try:
        source, fragments = ray.get(_inspect.remote(uri, wanted, format, protocol, options))
    except RayTaskError as error:
        raise error_without_content(error, wanted.where) from None
    if report is not None:
        report(source.summary)
    listing = ray.data.from_items(fragments, override_num_blocks=min(len(fragments), MAX_TASKS))
    tables = listing.map_batches(
        _read_fragments,  # type: ignore[arg-type] # Ray's types do not allow for fn_args
        fn_args=(source,),
        batch_size=None,
        batch_format="pyarrow",
    )
    return Reading(tables, lambda file, at: str(ray.get(_place.remote(source, file, at))))


def from_memory(source: Any, wanted: Wanted, *, where: str = "train_dataset") -> Reading:
    """The raw tables of a data set in memory.

    It is a Ray Data set, or what `memory.memory_tables` takes. `where`: the argument that errors name.

    Raises DataError for any other type, for an empty one, and for a missing column or an impossible column type; and
    UnreadableDataError, with the class of the error alone, where the data set itself raises: its message may quote a
    record.
    """
    silence_ray_data()
    wanted = replace(wanted, where=where)
    try:
        return _from_memory(source, wanted)
    except DataError:
        raise
    except RayTaskError as error:
        raise error_without_content(error, where) from None
    except Exception as error:
        raise UnreadableDataError(f"{where}: reading failed ({type(error).__name__})") from None


def _from_memory(source: Any, wanted: Wanted) -> Reading:
    if isinstance(source, str | bytes | Mapping):
        raise DataError(f"{wanted.where}: must be {MEMORY_KINDS}, not {type(source).__name__}")
    if isinstance(source, ray.data.Dataset):
        _check_ray(source, wanted)
        tables = source.map_batches(
            _raw_block,  # type: ignore[arg-type] # Ray's types do not allow for fn_args
            fn_args=(wanted,),
            batch_size=None,
            batch_format="pyarrow",
        )
        return Reading(tables, lambda file, at: "a record whose place is not known")
    tables = ray.data.from_arrow([packed(table) for table in memory_tables(source, wanted)])
    return Reading(tables, lambda file, at: place_in_memory(at))


def _check_ray(source: ray.data.Dataset, wanted: Wanted) -> None:
    """Raise DataError if a Ray Data set is empty, or if none of its blocks has a column.

    Types are not checked here: Ray's schema may be that of the first block.
    """
    try:
        schema = source.schema()
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return
    if schema is None:
        raise DataError(f"{wanted.where}: {EMPTY}")
    present = list(schema.names)
    if not set(wanted.names) <= set(present):
        names = source.map_batches(_column_names, batch_size=None, batch_format="pyarrow").take_all()
        present = list(dict.fromkeys(row["name"] for row in names))
    FileColumns(present, advice=ADVICE).check(wanted.names, "the data set", wanted.where)


def _column_names(block: pa.Table) -> pa.Table:
    return pa.table({"name": pa.array(block.column_names, pa.string())})


def silence_ray_data() -> None:
    """Silence Ray Data in this process and in processes that it starts later: it logs the number of records.

    Call it before `ray.init`, so that Ray's worker processes inherit the setting.
    """
    os.environ["RAY_DATA_LOG_LEVEL"] = "CRITICAL"
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False


def error_without_content(error: RayTaskError, where: str) -> DataError:
    """The DataError that a task raised; for any other error its class alone, since its message may quote a record."""
    cause: BaseException = error
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, DataError):
        return type(cause)(str(cause).partition("\n")[0])  # Ray Data appends lines
    return UnreadableDataError(f"{where}: reading failed ({type(cause).__name__})")


@ray.remote
def _inspect(
    uri: str,
    wanted: Wanted,
    format: str | None,  # noqa: A002
    protocol: str,
    options: dict[str, Any],
) -> tuple[Source, list[dict[str, Any]]]:
    return inspect(uri, wanted, format, protocol, options)


@ray.remote
def _place(source: Source, file: str, at: int) -> str:
    return source.place(file, at)


def _read_fragments(fragments: pa.Table, source: Source) -> Iterable[pa.Table]:
    for fragment in fragments.to_pylist():
        yield from map(packed, source.tables(**fragment))


def _raw_block(block: pa.Table, wanted: Wanted) -> pa.Table:
    """The raw table of a block, packed. A column that the block lacks is null: Ray would add it for another record."""
    columns = schema_columns(block.schema)
    places = {name: columns.find(name) for name in wanted.names}
    check_types(wanted.columns, {name: columns.type_of(name) for name in wanted.names}, wanted.where)
    return packed(raw_table(arrow_rows(block, places, block.schema, [NO_PLACE] * len(block)), wanted))
