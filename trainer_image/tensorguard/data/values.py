"""One rule for each kind of value: what a text, a class, an id, words or an image is, in every source.

In comes a value with its Python type, as a format or a data set in memory has it. Out comes the one form that the rest
of the trainer knows, the same for every format: a text, the text of a class, an id. `raw_table` calls these functions
for every source, and no format converts a value by itself. A conversation has its rule in `conversations`.

Nothing is guessed. A value that fits no rule raises `UnusableValue` with its kind, or, for an id, `NotAnId`.
"""

from __future__ import annotations

import datetime
import enum
import json
import re
import unicodedata
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from tensorguard.data.images import image_file, png_of
from tensorguard.data.unusable import Unusable

MAX_ID_CHARACTERS = 4096
"""The limit of an id. To find the canonical form of a text takes time that grows with the square of its length."""
EXACT_FLOAT = 1 << 53
"""Below it, a float64 holds each whole number, and no other number is rounded to one."""
_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?P<whole>\d*)\.?(?P<fraction>\d*)(e(?P<exponent>[+-]?\d{1,4}))?")
_WHOLE_LABEL = re.compile(r"([+-]?\d+)\.0*")
"""A whole number with a decimal point, as pandas writes all numbers of a column with a missing value."""
_UUID = re.compile(r"(urn:uuid:)?\{?([0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})\}?")
_ESCAPED = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as `decoded` keeps it."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


class UnusableValue(ValueError):
    """A value that makes its record unusable. `kind` says why."""

    def __init__(self, kind: Unusable) -> None:
        super().__init__(kind.value)
        self.kind = kind


class NotAnId(ValueError):
    """A value that is no id. `str()` says what it is, without content: "an object"."""


def decoded(value: bytes) -> str:
    """Bytes as text. Bytes that are not UTF-8 stay in it as lone surrogates, so that `text_of` and `id_of` see them."""
    return value.decode("utf-8", "surrogateescape")


def python_value(value: Any) -> Any:
    """A value with Python's own types where it has those of numpy, torch or pandas; a missing value is None."""
    if isinstance(value, np.generic) or hasattr(value, "tolist"):
        value = value.tolist()  # numpy, torch
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, Mapping):
        return {name: python_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [python_value(each) for each in value]
    if isinstance(value, float | Decimal):
        return None if value != value else value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas, which need not be installed
        return None
    return value


def text_of(value: Any) -> str:
    """A text, unchanged. Raises UnusableValue for a value that is blank, not text, or not UTF-8."""
    if isinstance(value, bytes):
        value = decoded(value)
    elif not isinstance(value, str) or isinstance(value, enum.Enum):
        value = python_value(value)
        if value is None:
            raise UnusableValue(Unusable.NO_TEXT)
        if not isinstance(value, str):
            raise UnusableValue(Unusable.NOT_TEXT)
    if not value or value.isspace():
        raise UnusableValue(Unusable.NO_TEXT)
    if value.isascii() or not _SURROGATE.search(value):
        return str(value)
    if _ESCAPED.search(value):
        raise UnusableValue(Unusable.NOT_UTF8)
    return _SURROGATE.sub("\ufffd", value)  # half of a pair, which JSON can write, and UTF-8 cannot


def label_of(value: Any) -> str:
    """The text of a class, by which `Recipe.class_of` finds its number: the same for 1, 1.0, "1" and " 1.0 ".

    A text is compared in NFC, trimmed and case folded. Raises UnusableValue for no value.
    """
    value = python_value(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        value = decoded(value)
    if isinstance(value, Decimal | float):
        value = repr(value) if isinstance(value, float) else f"{value:f}"
    if isinstance(value, str):
        text = unicodedata.normalize("NFC", value).strip().casefold()
        if not text:
            raise UnusableValue(Unusable.NO_LABEL)
        if _SURROGATE.search(text):
            raise UnusableValue(Unusable.NOT_UTF8)
        return whole[1] if (whole := _WHOLE_LABEL.fullmatch(text)) else text
    if isinstance(value, int):
        return str(value)
    raise UnusableValue(Unusable.NO_LABEL if value is None else Unusable.UNKNOWN_LABEL)


def list_of(value: Any) -> list[Any]:
    """A list, or the JSON text of one. Raises UnusableValue for any other value."""
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise UnusableValue(Unusable.NO_WORDS) from None
    value = python_value(value)
    if not isinstance(value, list) or not value:
        raise UnusableValue(Unusable.NO_WORDS)
    return value


def words_of(value: Any) -> list[str]:
    """The words of a text. Raises UnusableValue for anything but a list of texts, of which some may be blank."""
    words = list_of(value)
    return [word if word == "" else text_of(word) for word in words]


def tags_of(value: Any) -> list[str]:
    """The classes of words, each as `label_of`. Raises UnusableValue for anything but a list of classes."""
    return [label_of(each) for each in list_of(value)]


def image_of(value: Any) -> bytes:
    """The bytes of an image file. Raises UnusableValue where there are none.

    The value is bytes, an object with a field `bytes`, base64 text, a PIL image, or an array uint8 [height, width] or
    [height, width, 1, 3 or 4].
    """
    content = image_file(value) if isinstance(value, bytes | bytearray | str | Mapping) else png_of(value)
    if content is None:
        raise UnusableValue(Unusable.NO_IMAGE)
    return content


def id_of(value: Any) -> str | None:
    """An id in the form in which ids are compared; None for no id: null, NaN, blank or undecodable.

    An id is one scalar: an integer, a text, a boolean, a whole decimal, a whole float64 below 2^53, or a UUID.
    Two ids that are equal in the source are one id, however it is written, and so are two that only look different:
    if two users are taken for one, that costs records; if one is taken for two, the privacy claim is wrong.

    - Texts are compared in NFKC, case folded, without invisible characters, with single spaces and one kind of dash.
    - A text of digits is the integer: 7, "7", " 7 " and "007" are one id, since libraries drop leading zeros.
    - A text with a point or an exponent ("7.0") is the integer, if it is whole and below 2^53. Else it is a text.
    - A UUID is its number, with or without dashes, braces and `urn:uuid:`.
    - "true", "True" and True are the same.

    Raises NotAnId for everything else, for a text of more than `MAX_ID_CHARACTERS`, and for a number that has lost
    digits, as spreadsheets write long ones (1.23457E+11).
    """
    if isinstance(value, str):
        return _id_of_text(value)
    if _has_refused_type(value) and value == value:  # else it is NaN or NaT
        raise NotAnId(_name_of(value))
    value = python_value(value)
    if value is None:
        return None
    for kind, id_of_kind in _IDS:
        if isinstance(value, kind):
            return id_of_kind(value)
    raise NotAnId(_name_of(value))


def _has_refused_type(value: Any) -> bool:
    """Whether a value is a date, a time, or a float of fewer than 64 bits: `python_value` does not keep these types."""
    short = str(getattr(value, "dtype", "")).rpartition(".")[2] in ("float16", "bfloat16", "float32")
    return isinstance(value, _TIMES) or (short and value.ndim == 0)


def _id_of_integer(value: int) -> str | None:
    try:
        return _id_of_text(str(value))
    except ValueError:  # Python writes at most 4,300 digits
        raise NotAnId("an integer of thousands of digits") from None


def _id_of_float(value: float) -> str:
    if not value.is_integer() or abs(value) >= EXACT_FLOAT:
        raise NotAnId("a number with a fraction" if abs(value) < EXACT_FLOAT else "a float of 2^53 or more")
    return str(int(value))


def _id_of_decimal(value: Decimal) -> str | None:
    if not value.is_finite() or value.adjusted() > MAX_ID_CHARACTERS or value != value.to_integral_value():
        raise NotAnId("a number with a fraction")
    return _id_of_integer(int(value))


def _id_of_uuid(digits: str) -> str:
    """The id of a UUID's 32 digits. Without a letter they are a number, which they may be without dashes."""
    return str(int(digits, 10 if digits.isdecimal() else 16))


def _id_of_bytes(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise NotAnId("bytes that are not text") from None
    if any(unicodedata.category(each) == "Cc" and not each.isspace() for each in text):
        raise NotAnId("bytes that are not text")
    return _id_of_text(text)


@lru_cache(maxsize=1 << 16)
def _id_of_text(text: str) -> str | None:
    if len(text) > MAX_ID_CHARACTERS:
        text = " ".join(text.split())
        if len(text) > MAX_ID_CHARACTERS:
            raise NotAnId(f"a text of more than {MAX_ID_CHARACTERS} characters")
    if text.isascii() and text.isalnum():
        text = text.lower()
    elif any(each == "\ufffd" or "\ud800" <= each <= "\udfff" for each in text):
        return None
    else:
        text = _folded(text)
    if not text:
        return None
    if text[0] in "{[" and _is_json(text):
        raise NotAnId("the JSON text of an object or a list")
    if _WHOLE.fullmatch(text):
        return str(int(text))
    if found := _UUID.fullmatch(text):
        return _id_of_uuid(found[2].replace("-", ""))
    if (number := _DECIMAL.fullmatch(text)) and (number["whole"] or number["fraction"]):
        return _id_of_number(text, number)
    return text


_IDS: tuple[tuple[type, Callable[[Any], str | None]], ...] = (
    (bool, lambda value: str(value).lower()),
    (int, _id_of_integer),
    (str, _id_of_text),
    (uuid.UUID, lambda value: _id_of_uuid(value.hex)),
    (bytes, _id_of_bytes),
    (float, _id_of_float),
    (Decimal, _id_of_decimal),
)
"""The types of ids, each with what makes its id. A bool is an int, so it comes first."""


def _folded(text: str) -> str:
    """A text in the form in which texts are compared."""
    text = "".join(filter(_is_visible, text))
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = "".join("-" if each == "\u2212" or unicodedata.category(each) == "Pd" else each for each in text)
    return " ".join("".join(filter(_is_visible, text)).split())


def _id_of_number(text: str, number: re.Match[str]) -> str:
    """The id of a text with a point or an exponent."""
    exponent = int(number["exponent"] or 0)
    value = Decimal(text)
    written = "." in text or "e+" in text
    if written and (exponent > len(number["fraction"]) or abs(value) >= EXACT_FLOAT):
        raise NotAnId("a number that has lost digits, such as 1.23457E+11")
    if abs(value) < EXACT_FLOAT and value == value.to_integral_value():
        return str(int(value))
    return text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _name_of(value: Any) -> str:
    """What a value is, for a message: the kind, or the name of its class."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, _TIMES):
        return "a date or time"
    return f"a {str(getattr(value, 'dtype', '')) or type(value).__name__}"


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
