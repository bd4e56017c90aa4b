"""JSON lines: one object a line, and nothing else in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tensorguard.data.formats.text import LineFormat
from tensorguard.data.values import decoded

_JSON = "correct the line"


class JsonLines(LineFormat):
    """`.jsonl`, `.ndjson`, and `.json` with one object a line."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")

    def parse(self, line: bytes) -> Mapping[str, Any]:
        """The object that a line holds. Raises ValueError for any other line, and for a key that occurs twice."""
        value = _DECODER.decode(_text(line))
        if not isinstance(value, dict):
            raise ValueError
        return value

    def why(self, line: bytes) -> str:
        """The usual causes of a line that is not one object."""
        text = _text(line)
        if text.startswith("["):
            return "it begins a JSON array: write one object a line, as `jq -c '.[]'` does"
        try:
            return _why_not_an_object(_DECODER.decode(text))
        except _RepeatedKey:
            return "a key occurs twice in one object: rename or remove one"
        except (ValueError, RecursionError) as error:
            return _why_not_json(text, error)


class _RepeatedKey(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKey
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _text(line: bytes) -> str:
    return decoded(line).removeprefix("\ufeff").strip()


def _why_not_an_object(value: Any) -> str:
    if not isinstance(value, str):
        return f"it holds a JSON {'list' if isinstance(value, list) else 'value'}, and no object: {_JSON}"
    return (
        "it holds a JSON text, and no object; if JSON was encoded twice, so that the object is in the text: decode it"
    )


def _why_not_json(text: str, error: Exception) -> str:
    if text.startswith("version https://git-lfs"):
        return "the file is a pointer of Git LFS: fetch its content with `git lfs pull`"
    if text.endswith(","):
        return "it ends in a comma: write one object a line, and no commas between them, as `jq -c '.[]'` does"
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
        return "it holds more than one JSON value: write one object a line, as `jq -c .` does"
    if text.startswith("{") and not text.endswith("}"):
        return "an object begins and does not end in it: write one object a line, as `jq -c .` does"
    if text.startswith("{'"):
        return "it is the text of a Python dict, and not JSON: write it with json.dumps"
    return f"it is not JSON: {_JSON}"
