"""The raw tables of a data set, read in this process: of files without Ray, or of data in memory.

Out: tables one after another, with how many bytes of the files are read, and the place of a record in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tensafe_api.resources.training import Storage
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.files import Source
from tensorguard.data.listing import inspect
from tensorguard.data.memory import memory_tables, place_in_memory
from tensorguard.data.raw_table import Wanted
from tensorguard.storage import filesystem_options

IN_MEMORY = "Reading data in memory"


@dataclass(frozen=True)
class Reading:
    """A data set that is about to be read.

    Attributes:
        tables: raw tables, each of one file, with the number of bytes of finished parts of files. A table raises
            DataError where it cannot be read.
        place: of a record in words, from its file and place in a raw table.
        summary: which files are read, and which ones are left out.
        source: of the files; None for data in memory.
        sizes: of the files in bytes, by path.
    """

    tables: Iterator[tuple[pa.Table, int]]
    place: Callable[[str, int], str]
    summary: str = IN_MEMORY
    source: Source | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


def read_files(uri: str, wanted: Wanted, format: str | None, storage: Storage | None) -> Reading:  # noqa: A002
    """The files at a URI. Raises DataError where they cannot be listed, or the first does not fit the job."""
    source, fragments = inspect(uri, wanted, format, *filesystem_options(uri, storage))
    sizes = {fragment["path"]: fragment["size"] for fragment in fragments}

    def tables() -> Iterator[tuple[pa.Table, int]]:
        done = 0
        for fragment in fragments:
            for table in source.tables(**fragment):
                yield table, done
            done += fragment["size"] // fragment["parts"]

    return Reading(tables(), source.place, source.summary, source, sizes)


def read_memory(data: Any, wanted: Wanted) -> Reading:
    """Data in memory, of any kind that `fit` takes. Raises DataError for any other, or where a Ray data set lacks a
    column.
    """
    if not type(data).__module__.startswith("ray.data"):
        return Reading(_guarded(memory_tables(data, wanted), wanted.where), lambda file, at: place_in_memory(at))
    return _read_ray(data, wanted)


def _read_ray(data: Any, wanted: Wanted) -> Reading:
    from ray.exceptions import RayTaskError

    from tensorguard.data.packed import tables_in
    from tensorguard.data.read import error_without_content, from_memory

    found = from_memory(data, wanted, where=wanted.where)

    def tables() -> Iterator[pa.Table]:
        try:
            for block in found.tables.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from tables_in(block)
        except RayTaskError as error:
            raise error_without_content(error, wanted.where) from None

    return Reading(_guarded(tables(), wanted.where), found.place)


def _guarded(tables: Iterable[pa.Table], where: str) -> Iterator[tuple[pa.Table, int]]:
    """The tables. Of an error of the data set itself only the class is reported: its message may quote a record."""
    try:
        for table in tables:
            yield table, 0
    except DataError:
        raise
    except Exception as error:
        raise UnreadableDataError(f"{where}: reading failed ({type(error).__name__})") from None
