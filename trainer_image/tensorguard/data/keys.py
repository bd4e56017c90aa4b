"""Names for records and units: keyed hashes, which decide where a record goes and tell nothing without the key.

In comes a record's raw content; out go 32 bytes for the record and 32 for its unit. `shards` sends a unit to the
worker that its hash names, so the worker of a unit depends on nothing but the unit: neither on the order of the rows
nor on who else is there. (Were shards cut by row number, one record more would move others from worker to worker, and
the draws of different workers would no longer be independent of it.) Every hash is HMAC-SHA256 under the job's key,
with a word of its own in front for each use.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

WIDTH = 32  # bytes of every hash here

_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|(?i:inf(inity)?))")
_NULLS = frozenset(["nan", "NaN", "NaT", "<NA>"])
"""How the missing values of Python's libraries print."""


def content_of(values: Sequence[Any]) -> bytes | None:
    """A record's values, in a fixed order of columns, as canonical JSON; None where they have no such form."""
    try:
        text = json.dumps(values, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
        return text.encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError):
        return None


def user_of(value: Any) -> bytes | None:
    """A user's id, the same however a file wrote it; None for no id (null, NaN, or nothing but white space).

    One person under two names would be two units, and her privacy half of what is claimed; two people under one name
    only lose records to `maxExamplesPerUnit`. So what may be one id is one:

    - White space around an id does not count, nor how Unicode composes its letters or writes their variants (NFKC), nor
      what is not seen at all (control and format characters, and what Unicode says to ignore).
    - An id that is an object is the same in any order of its fields.
    - Ids that read as decimal numbers are one where the numbers are (7, 7.0, "7", " 7 ", 7e0, and "007" too: a library
      that takes ids for numbers drops zeros), after rounding to 64-bit floats, as pandas rounds ids beyond 2^53 in any
      file where one is missing. Give long numbers that lie close together a letter ("u9007199254740993") to keep them
      apart.
    - "true", "True" and True are one.

    Everything else, case included, tells ids apart.
    """
    if value is None or (not isinstance(value, str) and str(value) in _NULLS):
        return None
    text = value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)
    text = unicodedata.normalize("NFKC", "".join(filter(_is_seen, text)))
    text = "".join(filter(_is_seen, text)).strip()
    if text.startswith(("{", "[")):
        text = _in_order(text)
    if _NUMBER.fullmatch(text):
        number = float(text)
        text = str(int(number)) if number.is_integer() else repr(number)
    elif text.lower() in ("true", "false"):
        text = text.lower()
    return text.encode("utf-8", "replace") or None


def _in_order(text: str) -> str:
    """JSON with the fields of its objects in one order; other text as it is."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def record_key(key: bytes, content: bytes) -> bytes:
    """The name of a record, 32 bytes; equal contents have equal names."""
    return hmac.digest(key, b"tensafe/record\0" + content, "sha256")


def unit_key(key: bytes, *, user: bytes | None, content: bytes) -> bytes:
    """The name of a record's unit, 32 bytes: of its user, or of its own content where it has none."""
    said = b"tensafe/user\0" + user if user is not None else b"tensafe/example\0" + content
    return hmac.digest(key, said, "sha256")


def shard_of(unit: bytes, workers: int) -> int:
    """The worker in [0, workers) that holds a unit."""
    return int.from_bytes(unit, "big") % workers


def record_key_sum(record_keys: np.ndarray) -> int:
    """The sum mod 2^256 of names (uint8 [n, 32], big-endian): the same in any order, so each shard adds up its own."""
    words = record_keys.reshape(-1, WIDTH).view(">u4").sum(axis=0, dtype=np.uint64)  # exact for n < 2^32
    return sum(int(word) << 32 * (7 - i) for i, word in enumerate(words)) % (1 << 8 * WIDTH)


def dataset_digest(key: bytes, sums: Iterable[int]) -> str:
    """The data set's digest from its shards' sums, as "hmac-sha256:" and 64 hexadecimal digits.

    It changes when a record is added, removed or changed, and not with order or number of workers. It may be
    published: it is one more keyed hash over the sum, so without the key not even the difference of two digests tells
    of a record.
    """
    total = sum(sums) % (1 << 8 * WIDTH)
    return (
        "hmac-sha256:" + hmac.new(key, b"tensafe/dataset\0" + total.to_bytes(WIDTH, "big"), hashlib.sha256).hexdigest()
    )


def _is_seen(sign: str) -> bool:
    """Whether a character is white space or anything that shows."""
    if sign.isspace():
        return True
    return unicodedata.category(sign) not in ("Cc", "Cf") and not any(ord(sign) in span for span in _IGNORABLE)


_IGNORABLE = (
    range(0x034F, 0x0350),
    range(0x115F, 0x1161),
    range(0x17B4, 0x17B6),
    range(0x180B, 0x1810),
    range(0x2065, 0x2066),
    range(0x2800, 0x2801),  # a Braille cell without a dot
    range(0x3164, 0x3165),
    range(0xFE00, 0xFE10),
    range(0xFFA0, 0xFFA1),
    range(0xFFF0, 0xFFF9),
    range(0xE0000, 0xE1000),
)
"""Unicode's Default_Ignorable_Code_Points that are in neither category, and a blank that is no white space."""
