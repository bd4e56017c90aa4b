"""Keys of records and units: keyed hashes that decide a record's worker, and reveal nothing without the job's key.

In comes a record's raw content; out go 32 bytes for the record and 32 for its unit. The hash of a unit selects its
worker, so the worker depends on nothing but the unit: neither on the order of the rows nor on other records. If shards
were cut by row number, one more record would move others from worker to worker, and the draws of the workers would no
longer be independent of it. Every hash is HMAC-SHA256 under the job's secret key, with a different prefix for each use.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

WIDTH = 32  # bytes of every hash here

_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|(?i:inf(inity)?))")
_NULLS = frozenset(["nan", "NaN", "NaT", "<NA>"])
"""The texts of missing values in Python's libraries."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""What the text of a Python object has if its class defines none. It is another one for an equal object."""
UNREADABLE_USER = "\ufffd"
"""The id of all users whose ids have no such text. They are one unit: a unit for each record could split a user."""
MAX_ID_CHARACTERS, MAX_RAW_ID_CHARACTERS = 4096, 1 << 16
"""A longer id has no such text either, without and with white space around it and invisible characters: to find the
canonical form of a text takes time that grows with the square of its length."""
MAX_DIGITS = 400
"""The digits of a decimal number that is made an integer. Of more it is a float: 1e999999999 is a short text."""


def canonical(value: Any) -> Any:
    """A value as it is in every data set: whole numbers are integers, and fields of objects that hold null are absent.

    A file or library with types chooses them from all its rows. So one record may turn the numbers of others into
    floats, and give the objects of others a field with null. Text is not changed, not even JSON text. Arrays and
    tensors become lists. A decimal number of at least 10^`MAX_DIGITS` becomes a float, infinity.
    """
    if value is None or isinstance(value, str):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        fields = sorted(value.items(), key=lambda item: repr(item[0]))  # str(1) == str("1")
        return {str(name): canonical(each) for name, each in fields if each is not None}
    if isinstance(value, list | tuple):
        return [canonical(each) for each in value]
    if isinstance(value, Decimal) and value.is_finite():
        whole = abs(value.adjusted()) < MAX_DIGITS and value == value.to_integral_value()
        value = int(value) if whole else float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def canonical_json(value: Any) -> str:
    """JSON text of the canonical value, with the fields of objects sorted.

    Raises TypeError, ValueError, ArithmeticError or RecursionError for a value that JSON cannot hold.
    """
    found = canonical(value)
    return json.dumps(found, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_text_of_object)


def content_of(values: Sequence[Any]) -> bytes | None:
    """A record's values, in a fixed order of columns, as canonical JSON; None if JSON cannot hold them."""
    try:
        return canonical_json(values).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return None


def user_of(value: Any) -> bytes | None:
    """A user's id in canonical form, the same in every file format; None for no id (null, NaN, or only white space).

    A user with two ids would be two units, and her privacy would be half of the claim. Two users with one id only lose
    records to `maxExamplesPerUnit`. So ids that may be the same are the same:

    - White space around an id is ignored, and so are Unicode's compositions and variants of letters (NFKC), and
      invisible characters (control and format characters, and those that Unicode declares ignorable).
    - An id that is an object is the same in any order of its fields, and with or without those that hold null.
    - Ids that are decimal numbers are the same if the numbers are equal: 7, 7.0, "7", " 7 ", 7e0, and also "007", since
      libraries that parse ids as numbers drop leading zeros. They are compared as 64-bit floats, because pandas rounds
      ids above 2^53 in any file in which one id is missing. To keep long numbers apart that are close together, put a
      letter in front ("u9007199254740993").
    - "true", "True" and True are the same.

    Any other difference, including upper and lower case, makes two ids. All ids of types that have no such text are one
    (`UNREADABLE_USER`), together with those of more than 4,096 characters.
    """
    text = _text_of_user(value)
    if text is None:
        return None
    if len(text) > MAX_RAW_ID_CHARACTERS:
        return UNREADABLE_USER.encode()
    text = "".join(filter(_is_visible, text)).strip()
    if len(text) > MAX_ID_CHARACTERS:
        return UNREADABLE_USER.encode()
    text = unicodedata.normalize("NFKC", text)
    text = "".join(filter(_is_visible, text)).strip()
    if text.startswith(("{", "[")):
        text = in_order(text) or text
    if _NUMBER.fullmatch(text):
        number = float(text)
        text = str(int(number)) if number.is_integer() else repr(number)
    elif text.lower() in ("true", "false"):
        text = text.lower()
    return text.encode("utf-8", "replace") or None


def in_order(text: str) -> str | None:
    """JSON text in canonical form, with the fields of its objects sorted; None for any other text."""
    try:
        return canonical_json(json.loads(text))
    except (ValueError, ArithmeticError, RecursionError):
        return None


def _text_of_user(value: Any) -> str | None:
    """The text of an id; None for no id."""
    try:
        value = canonical(value.value if isinstance(value, enum.Enum) else value)
        if isinstance(value, bytes | bytearray):
            return value.decode("utf-8", "replace")
        if value is None or (not isinstance(value, str) and str(value) in _NULLS):
            return None
        if isinstance(value, dict | list):
            return canonical_json(value)
        return value if isinstance(value, str) else _text_of_object(value)
    except Exception:  # such as an integer of thousands of digits: no record may stop a job
        return UNREADABLE_USER


def _text_of_object(value: object) -> str:
    """The text of a value that JSON does not know."""
    text = str(value)
    return UNREADABLE_USER if _ADDRESS.search(text) else text


def record_key(key: bytes, content: bytes) -> bytes:
    """The key of a record, 32 bytes; equal contents have equal keys."""
    return hmac.digest(key, b"tensafe/record\0" + content, "sha256")


def unit_key(key: bytes, *, user: bytes | None, content: bytes) -> bytes:
    """The key of a record's unit, 32 bytes: of its user, or of its own content if it has no user."""
    message = b"tensafe/user\0" + user if user is not None else b"tensafe/example\0" + content
    return hmac.digest(key, message, "sha256")


def shard_of(unit: bytes, workers: int) -> int:
    """The worker in [0, workers) that holds a unit."""
    return int.from_bytes(unit, "big") % workers


def record_key_sum(record_keys: Sequence[bytes]) -> int:
    """The sum mod 2^256 of record keys (32 bytes each, big-endian). It does not depend on their order or shard."""
    words = np.frombuffer(b"".join(record_keys), ">u4").reshape(-1, WIDTH // 4).sum(axis=0, dtype=np.uint64)
    return sum(int(word) << 32 * (7 - i) for i, word in enumerate(words)) % (1 << 8 * WIDTH)  # exact for n < 2^32


def dataset_digest(key: bytes, sums: Iterable[int]) -> str:
    """The data set's digest from the sums of the keys of its records, as "hmac-sha256:" and 64 hexadecimal digits.

    It covers every record that is read, and changes when one is added, removed or changed. It does not depend on the
    order of records or on the number of workers. It may be published: it is a keyed hash of the sum, so without the
    secret key not even the difference of two digests reveals anything about a record. With the key it is an exact test
    of a guessed data set.
    """
    total = sum(sums) % (1 << 8 * WIDTH)
    return (
        "hmac-sha256:" + hmac.new(key, b"tensafe/dataset\0" + total.to_bytes(WIDTH, "big"), hashlib.sha256).hexdigest()
    )


def _is_visible(character: str) -> bool:
    """Whether a character is white space or visible."""
    if character.isspace():
        return True
    return unicodedata.category(character) not in ("Cc", "Cf") and not any(
        ord(character) in span for span in _IGNORABLE
    )


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
"""Unicode's Default_Ignorable_Code_Points that are in neither category, and a blank that is not white space."""
