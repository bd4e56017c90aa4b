"""From an address, or from data in memory, to a Ray Data set of tables with the raw columns that a job uses.

`read` takes a URI: one Ray task lists the files and reads column names and types, never values. The resulting Ray Data
set reads its fragments lazily, in the same tasks that tokenise them (Ray Data fuses the two), so that no record passes
through the driver's process. `from_memory` takes a data set of the Python API. Each row of the result is a table
(`packed`). `shards.prepare` consumes it.

A data set's columns are given as a mapping from role (prompt, completion, messages, tools, text, label, user) to the
column's name, so that an error can name the manifest's field.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayTaskError

from tensafe_api.resources.training import Storage
from tensafe_api.tasks import image_columns
from tensorguard.data.columns import check_text_columns, check_types
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.files import Source
from tensorguard.data.formats.text import text_of, text_table
from tensorguard.data.images import image_text
from tensorguard.data.keys import user_of
from tensorguard.data.listing import inspect
from tensorguard.data.packed import packed
from tensorguard.data.records import MEMORY_KINDS, records_of
from tensorguard.data.tokenise import plain
from tensorguard.storage import filesystem_options

MAX_TASKS = 512
MEMORY_BLOCK_ROWS = 16_384
_ADVICE = "write the names that its records have, as in columns={'text': 'note', 'label': 'department'}"


def read(
    uri: str,
    columns: Mapping[str, str],
    *,
    format: str | None = None,  # noqa: A002 - the name of the manifest's field
    storage: Storage | None = None,
    base_dir: Path | None = None,
    where: str = "spec.dataset",
) -> ray.data.Dataset:
    """Tables of the named columns of the files at `uri`, packed, lazily.

    Args:
        uri: a path (relative to base_dir), `file://`, or another scheme (`s3://`, `hf://datasets/...`); a file, a
            directory (with its subdirectories, without names that start with "." or "_") or a glob (with such names).
        columns: role -> column name (`columns_of`).
        format: the name of a format, for files whose names have no known ending.
        storage: endpoint and region; credentials come from the environment.
        base_dir: the folder of relative paths; None: the working directory.
        where: the manifest's field that errors name.

    Raises:
        DataError: unreadable, no files, a missing column, or a type that does not fit the column's role.
    """
    silence_ray_data()
    protocol, options = filesystem_options(uri, storage)
    if protocol == "file":
        path = Path(uri.removeprefix("file://")).expanduser()
        uri = str(path if path.is_absolute() or base_dir is None else Path(base_dir) / path)
    try:
        source, fragments = ray.get(_inspect.remote(uri, dict(columns), format, protocol, options, where))
    except RayTaskError as error:
        raise error_without_content(error, where) from None
    listing = ray.data.from_items(fragments, override_num_blocks=min(len(fragments), MAX_TASKS))
    return listing.map_batches(
        _read_fragments,  # type: ignore[arg-type] # Ray's types do not allow for fn_args
        fn_args=(source,),
        batch_size=None,
        batch_format="pyarrow",
    )


def from_memory(source: Any, columns: Mapping[str, str], *, where: str = "train_dataset") -> ray.data.Dataset:
    """A data set in memory as a Ray Data set of tables of the named columns, packed.

    It is a Ray Data set, a Hugging Face `Dataset`, or what `records.records_of` takes.

    Raises DataError for any other type, for an empty one, and for a missing column or an impossible column type; and
    UnreadableDataError, with the class of the error alone, where the data set itself raises: its message may quote a
    record.
    """
    silence_ray_data()
    try:
        return _from_memory(source, columns, where)
    except DataError:
        raise
    except RayTaskError as error:
        raise error_without_content(error, where) from None
    except Exception as error:
        raise UnreadableDataError(f"{where}: reading failed ({type(error).__name__})") from None


def _from_memory(source: Any, columns: Mapping[str, str], where: str) -> ray.data.Dataset:
    if isinstance(source, str | bytes | Mapping):
        raise DataError(f"{where}: must be {MEMORY_KINDS}, not {type(source).__name__}")
    if isinstance(source, ray.data.Dataset):
        _check_ray(source, columns, where)
        return source.map_batches(
            _pack_columns,  # type: ignore[arg-type] # Ray's types do not allow for fn_args
            fn_args=(list(dict.fromkeys(columns.values())),),
            batch_size=None,
            batch_format="pyarrow",
        )
    if all(hasattr(source, name) for name in ("with_format", "column_names", "__getitem__", "__len__")):
        table = source.with_format("arrow")[:]
        check_text_columns(columns.values(), table.column_names, "the data set", _ADVICE, where)
        table = table.select(list(dict.fromkeys(columns.values())))
        check_types(columns, {field.name: field.type for field in table.schema}, where)
    else:
        table = _records_table(records_of(source, where), columns, where)
    if not table.num_rows:
        raise DataError(f"{where}: it is empty: pass at least one record")
    starts = range(0, table.num_rows, MEMORY_BLOCK_ROWS)
    return ray.data.from_arrow([packed(table.slice(start, MEMORY_BLOCK_ROWS)) for start in starts])


def _check_ray(source: ray.data.Dataset, columns: Mapping[str, str], where: str) -> None:
    """Raise DataError if a Ray Data set is empty, or if none of its blocks has a column.

    Types are not checked: one record may decide the type of its block, and Ray's schema may be that of the first block.
    """
    try:
        schema = source.schema()
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return
    if schema is None:
        raise DataError(f"{where}: it is empty: pass at least one record")
    present = list(schema.names)
    if not set(columns.values()) <= set(present):
        names = source.map_batches(_column_names, batch_size=None, batch_format="pyarrow").take_all()
        present = list(dict.fromkeys(row["name"] for row in names))
    check_text_columns(columns.values(), present, "the data set", _ADVICE, where)


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
    columns: dict[str, str],
    format: str | None,  # noqa: A002
    protocol: str,
    options: dict[str, Any],
    where: str,
) -> tuple[Source, list[dict[str, Any]]]:
    return inspect(uri, columns, format, protocol, options, where)


def _read_fragments(fragments: pa.Table, source: Source) -> Iterable[pa.Table]:
    for fragment in fragments.to_pylist():
        yield from map(packed, source.tables(**fragment))


def _pack_columns(block: pa.Table, names: list[str]) -> pa.Table:
    """The named columns of a block, packed.

    A field that a record lacks is null, also that of the user: Ray makes it null if another record of the block has the
    field, and what becomes of a record must not depend on others.
    """
    missing = pa.nulls(len(block))
    return packed(pa.table({n: block.column(n) if n in block.column_names else missing for n in names}))


def _records_table(records: Sequence[Mapping[str, Any]], columns: Mapping[str, str], where: str) -> pa.Table:
    if not records:
        raise DataError(f"{where}: it is empty: pass at least one record")
    names = list(dict.fromkeys(columns.values()))
    present = list(dict.fromkeys(name for record in records for name in record))
    check_text_columns(names, present, "the data set", _ADVICE, where)
    user = columns.get("user")
    if user is not None:  # as in files: a record without the field could be anybody's
        records = [record for record in records if user in record]
    images = {columns.get(role) for role in image_columns()} - {None}
    texts = [_user_text if name == user else image_text if name in images else _text for name in names]
    return text_table([[text(record.get(name)) for name, text in zip(names, texts)] for record in records], names)


def _text(value: Any) -> str | None:
    """As `text_of`; a tensor or array becomes its number or list, and a value that JSON cannot hold becomes None."""
    try:
        return text_of(plain(value))
    except Exception:  # whatever a value raises, such as Decimal's signalling NaN: no record may stop a job
        return None


def _user_text(value: Any) -> str | None:
    """As `_text`, but an id that JSON cannot hold (Decimal, UUID, bytes, a date) is kept: None would be a new unit."""
    text = _text(value)
    if text is not None:
        return text
    user = user_of(value)
    return None if user is None else user.decode()
