"""Reads the files of a data set as `tensorguard.data` does, without Ray: for tests of formats and of listing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tensorguard.data.errors import DataError
from tensorguard.data.listing import inspect
from tensorguard.data.raw_table import Wanted, python_values

TEXT_LABEL: Mapping[str, str] = {"text": "text", "label": "label"}


def rows_at(path: str | Path, columns: Mapping[str, str] = TEXT_LABEL, form: str | None = None) -> list[dict[str, Any]]:
    """All rows of the files at `path`, by column, with the values that the files hold.

    `form`: the name of their format, if no ending shows it.
    """
    source, fragments = inspect(str(path), Wanted(columns), form, "file", {})
    found = (rows for fragment in fragments for rows in source.rows(**fragment))
    return [dict(zip(rows.columns, row)) for rows in found for row in zip(*map(python_values, rows.columns.values()))]


def records_at(path: str | Path, columns: Mapping[str, str] = TEXT_LABEL) -> list[dict[str, Any]]:
    """All records of the files at `path`, by role, as a job converts them."""
    source, fragments = inspect(str(path), Wanted(columns), None, "file", {})
    tables = [table for fragment in fragments for table in source.tables(**fragment)]
    return [row for table in tables for row in table.select(list(columns)).to_pylist()]


def refusal(
    path: str | Path, columns: Mapping[str, str] = TEXT_LABEL, form: str | None = None, protocol: str = "file"
) -> str:
    """The sentence with which the files at `path` are refused before a row is read."""
    with pytest.raises(DataError) as error:
        inspect(str(path), Wanted(columns), form, protocol, {})
    message = str(error.value)
    assert "\n" not in message
    return message
