"""Reads the files of a data set as `tensorguard.data` does, without Ray: for tests of formats and of listing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorguard.data.listing import inspect

TEXT_LABEL: Mapping[str, str] = {"text": "text", "label": "label"}


def rows_at(path: str | Path, columns: Mapping[str, str] = TEXT_LABEL, form: str | None = None) -> list[dict[str, Any]]:
    """All rows of the files at `path`. `form`: the name of their format, if no ending shows it."""
    source, fragments = inspect(str(path), columns, form, "file", {}, "spec.dataset")
    return [row for fragment in fragments for table in source.tables(**fragment) for row in table.to_pylist()]
