"""The data formats. One module is one format; `FORMATS` lists them all.

docs/extending/data-format.md shows how to add one.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from tensorguard.data.compression import without_compression
from tensorguard.data.formats.base import DataFile, DataFormat
from tensorguard.data.formats.csv import Csv, Tsv
from tensorguard.data.formats.jsonl import JsonLines
from tensorguard.data.formats.parquet import Parquet

__all__ = ["FORMATS", "DataFile", "DataFormat", "format_named", "format_of"]

FORMATS: tuple[DataFormat, ...] = (Parquet(), JsonLines(), Csv(), Tsv())


def format_named(name: str) -> DataFormat:
    """The format that `spec.dataset.format` names. Raises KeyError for a name that no format has."""
    return {each.name: each for each in FORMATS}[name]


def format_of(path: str) -> DataFormat | None:
    """The format of a file by its name, without a compression ending; None where no format has that ending."""
    ending = PurePosixPath(without_compression(path)).suffix.lower()
    return next((each for each in FORMATS if ending in each.endings), None)
