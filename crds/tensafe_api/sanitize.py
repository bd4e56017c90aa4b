"""Sanitises untrusted text for a terminal or a page.

In: any value. Out: text on one line. A terminal obeys control characters, an end of a line could imitate another line,
and HTML has no place for some code points.
"""

from __future__ import annotations

import re
from typing import Any

_LINE_END = re.compile("\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
"""All that `str.splitlines` splits at."""
_DROPPED = re.compile("[\x80-\x9f\u202a-\u202e\u2066-\u2069]")
"""C1 controls, and those that change the direction of the text around them."""
_NONCHARACTERS = "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
_CONTROL = re.compile(f"[\x00-\x08\x0e-\x1b\x1f\x7f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
"""Other controls than the tab; surrogates, which no encoding can write; and code points that are no characters."""


def clean(text: object) -> str:
    """Text on one line, without control characters other than the tab."""
    return _CONTROL.sub("�", _DROPPED.sub("", _LINE_END.sub(" ", str(text))))


def clean_lines(text: object) -> str:
    """Text of several lines, each of them cleaned. Only line feeds end a line."""
    return "\n".join(map(clean, str(text).split("\n")))


def clean_document(value: Any) -> Any:
    """A value that was read from JSON, with each text in it cleaned, such that no text makes a line of its own."""
    if isinstance(value, dict):
        return {clean(name): clean_document(each) for name, each in value.items()}
    if isinstance(value, list):
        return [clean_document(each) for each in value]
    return clean(value) if isinstance(value, str) else value
