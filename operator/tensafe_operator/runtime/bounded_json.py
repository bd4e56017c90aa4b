"""Reads JSON of any nesting, as an API server may send it: parts that are nested too deeply become a text.

The API server accepts objects that are nested 10,000 deep, also in fields without a schema and in `managedFields`. Any
user who may write any object can therefore send a reader text on which `json.loads` and most other recursive functions
fail. Honest objects of Kubernetes are nested at most about 20 deep.
"""

from __future__ import annotations

import json
import re
from typing import Any

DEEPEST = 64
"""Containers may be nested so deep. A deeper one is replaced by `TOO_DEEP`."""
TOO_DEEP = "(nested too deeply)"
"""No valid value of a field that holds a container: the API server rejects or drops it in what is made from it."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
"""A string, or a bracket outside of strings."""


def loads_bounded(text: str | bytes) -> Any:
    """`json.loads`, with containers that are nested deeper than `DEEPEST` replaced by `TOO_DEEP`.

    Raises:
        ValueError: if the text is not JSON.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        document = json.loads(_cut(text.encode() if isinstance(text, str) else text))
    _replace_deep(document)
    return document


def _replace_deep(document: Any) -> None:
    level = [document]
    for _ in range(DEEPEST):
        level = [each for container in level for each in _members(container) if isinstance(each, dict | list)]
        if not level:
            return
    for container in level:  # the deepest that stay: their containers go
        for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
            if isinstance(value, dict | list):
                container[key] = TOO_DEEP


def _members(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container if isinstance(container, list) else ()


def _cut(text: bytes) -> bytes:
    """The text with a string in place of each container that is nested deeper than `DEEPEST` and one."""
    parts: list[bytes] = []
    depth = kept = 0
    for token in _TOKEN.finditer(text):
        bracket = token.group()
        if bracket in (b"[", b"{"):
            depth += 1
            if depth == DEEPEST + 2:
                parts.append(text[kept : token.start()])
        elif bracket in (b"]", b"}"):
            if depth == DEEPEST + 2:
                parts.append(json.dumps(TOO_DEEP).encode())
                kept = token.end()
            depth -= 1
    return b"".join([*parts, text[kept:] if depth < DEEPEST + 2 else b""])
