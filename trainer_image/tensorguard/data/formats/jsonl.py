"""JSON lines: one object a line. A value that is not a string is kept as its JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensorguard.data.columns import FileColumns
from tensorguard.data.errors import DataError
from tensorguard.data.formats.base import DataFile
from tensorguard.data.formats.text import LineFormat, lines


class JsonLines(LineFormat):
    """`.jsonl`, `.ndjson`, and `.json` with one object a line."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")

    def parse(self, line: bytes) -> Mapping[str, Any]:
        """The object that a line holds; empty for a line that holds another JSON value."""
        value = json.loads(line.decode("utf-8", "replace").removeprefix("\ufeff"))
        return value if isinstance(value, dict) else {}

    def columns(self, file: DataFile, wanted: Sequence[str]) -> FileColumns:
        """As `LineFormat.columns`. A file that holds one JSON array gets an error of its own."""
        found = super().columns(file, wanted)
        if not found.names:
            with file.open() as handle:
                if next(lines(handle, 0, None), b"").lstrip().startswith(b"["):
                    raise DataError(
                        f"{file.where}.uri: {file.path} holds a JSON array, not JSON lines: write one object a line"
                    )
        return found
