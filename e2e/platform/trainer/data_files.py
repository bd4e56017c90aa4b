"""Reads the files of a data set as `tensorguard.data` does, without Ray: for tests of formats and of listing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tensorguard.data.errors import DataError
from tensorguard.data.listing import inspect

TEXT_LABEL: Mapping[str, str] = {"text": "text", "label": "label"}


def rows_at(path: str | Path, columns: Mapping[str, str] = TEXT_LABEL, form: str | None = None) -> list[dict[str, Any]]:
    """All rows of the files at `path`. `form`: the name of their format, if no ending shows it."""
    source, fragments = inspect(str(path), columns, form, "file", {}, "spec.dataset")
    return [row for fragment in fragments for table in source.tables(**fragment) for row in table.to_pylist()]


def refusal(
    path: str | Path, columns: Mapping[str, str] = TEXT_LABEL, form: str | None = None, protocol: str = "file"
) -> str:
    """The sentence with which the files at `path` are refused before a row is read."""
    with pytest.raises(DataError) as error:
        inspect(str(path), columns, form, protocol, {}, "spec.dataset")
    message = str(error.value)
    assert "\n" not in message
    return message
