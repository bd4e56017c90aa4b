"""The numbers of the resources: decimal strings, quantities and whole numbers, with their bounds; and flags.

A value as read from YAML or JSON comes in. The same value goes out, or a sentence that states what is wrong with it and
how to write it. The blocks of this package use these types.

Numbers with a privacy meaning stay **strings** from the manifest to the ledger: a float would be rounded on the way,
and an epsilon that is rounded down is a false claim. `parse_decimal` returns the float for computations. CEL checks the
ranges, but its `double()` accepts `inf`, `+5` and `0x1p-2`; so each string also has a form. A bare number in such a
field is refused, because the API server refuses it too (the type of the field is string).
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from tensafe_api.resources.base import Rule
from tensafe_api.resources.string_form import StringForm

MIN_DELTA = 1e-300
"""The smallest δ. A float far below it has few digits, and the millionth of δ that pays for the noise would be 0."""

MIN_SIGMA, MAX_SIGMA = 1e-3, 1e9
"""Bounds of noise multipliers. Beyond them floats have too few digits for the accountants."""
MIN_RATE, MIN_NOISE_MULTIPLIER = 1e-12, 1e-6
"""The smallest figures of a job: one unit of the largest data set, and less noise than any grid allows."""

MAX_WORKERS = 256
"""The largest group of workers for which the graph of neighbours and the grid are tested."""
MAX_GPUS = 16
"""The largest number of GPUs of one worker."""


def parse_decimal(value: str) -> float:
    """The value of a decimal string.

    Raises:
        ValueError: the string is not a finite decimal number (`inf`, `nan`, `+5`, `0x1p-2`, `1e999`, a word).
    """
    if not re.fullmatch(_DECIMAL, value) or not math.isfinite(float(value)):
        raise ValueError(f"{value!r} is not a finite decimal number")
    return float(value)


def parse_quantity(value: str) -> float:
    """The size of a Kubernetes quantity: cores for `500m` or `8`, bytes for `64Gi`.

    Raises:
        ValueError: the string is not a quantity of the form that these resources accept.
    """
    match = re.fullmatch(_QUANTITY, value)
    if match is None:
        raise ValueError(f"{value!r} is not a quantity")
    return float(Decimal(match["digits"]) * _SUFFIXES[match["suffix"] or ""])


_DECIMAL = r"(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?"
_QUANTITY = r"(?P<digits>[0-9]+(\.[0-9]+)?)(?P<suffix>m|k|M|G|T|Ki|Mi|Gi|Ti)?"
_SUFFIXES = {"": Decimal(1), "m": Decimal("0.001")}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGT", start=1)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGT", start=1)}

DECIMAL = rf"-?{_DECIMAL}"
"""Form of a decimal string. The form allows a minus sign; the rule for the lower bound then refuses it."""

_FINITE = Rule("double(self) < 1e300", "must be below 1e300", lambda text: float(text) < 1e300)
_POSITIVE = Rule("double(self) > 0.0", "must be above 0", lambda text: float(text) > 0)
_NOT_NEGATIVE = Rule("!self.startsWith('-')", "must not be below 0", lambda text: not text.startswith("-"))
_LEAST_DELTA = Rule(
    f"double(self) >= {MIN_DELTA}", f"must be at least {MIN_DELTA}", lambda text: float(text) >= MIN_DELTA
)
_BELOW_ONE = Rule("double(self) < 1.0", "must be below 1", lambda text: float(text) < 1)
_UP_TO_ONE = Rule("double(self) <= 1.0", "must be at most 1", lambda text: float(text) <= 1)


def _decimal(*rules: Rule) -> StringForm:
    return StringForm(DECIMAL, 'a decimal number such as "8", "0.05" or "2e-4"', 32, rules)


PositiveDecimal = Annotated[str, _decimal(_POSITIVE, _FINITE)]
"""A decimal string above 0."""
Epsilon = Annotated[
    str,
    _decimal(
        _POSITIVE,
        Rule(
            "double(self) <= 1e12",
            "must be at most 1e12",
            lambda text: float(text) <= 1e12,
        ),
    ),
]
"""A decimal string above 0, up to 1e12."""
LearningRate = Annotated[
    str,
    _decimal(_POSITIVE, Rule("double(self) <= 100.0", "must be at most 100", lambda text: float(text) <= 100)),
]
"""A decimal string above 0, up to 100."""
WeightDecay = Annotated[
    str,
    _decimal(_NOT_NEGATIVE, Rule("double(self) <= 100.0", "must be at most 100", lambda text: float(text) <= 100)),
]
"""A decimal string from 0 to 100."""
GradNorm = Annotated[
    str,
    _decimal(
        Rule(
            "double(self) >= 1e-6 && double(self) <= 1e6",
            "must be from 1e-6 to 1e6, where float32 gradients keep their precision",
            lambda text: 1e-6 <= float(text) <= 1e6,
        ),
    ),
]
"""A decimal string from 1e-6 to 1e6."""
LossScale = Annotated[
    str,
    _decimal(
        Rule(
            "double(self) >= 1.0 && double(self) <= 16777216.0",
            "must be from 1 to 16777216",
            lambda text: 1 <= float(text) <= 2**24,
        ),
    ),
]
"""A decimal string from 1 to 2^24."""
NonNegativeDecimal = Annotated[str, _decimal(_NOT_NEGATIVE, _FINITE)]
"""A decimal string of 0 or more."""
Delta = Annotated[str, _decimal(_LEAST_DELTA, _BELOW_ONE)]
"""A decimal string from 1e-300 to below 1."""
Share = Annotated[str, _decimal(_NOT_NEGATIVE, _BELOW_ONE)]
"""A decimal string from 0 to below 1."""
Rate = Annotated[str, _decimal(_POSITIVE, _UP_TO_ONE)]
"""A decimal string above 0, up to 1."""
SampleRate = Annotated[
    str,
    _decimal(
        Rule(
            f"double(self) >= {MIN_RATE} && double(self) <= 1.0",
            f"must be from {MIN_RATE} to 1",
            lambda text: MIN_RATE <= float(text) <= 1,
        ),
    ),
]
"""A decimal string from 1e-12 to 1: the probability with which a unit joins a step."""
NoiseMultiplier = Annotated[
    str,
    _decimal(
        Rule(
            f"double(self) >= {MIN_NOISE_MULTIPLIER} && double(self) <= 1e9",
            f"must be from {MIN_NOISE_MULTIPLIER} to 1e9",
            lambda text: MIN_NOISE_MULTIPLIER <= float(text) <= MAX_SIGMA,
        ),
    ),
]
"""A decimal string from 1e-6 to 1e9: the standard deviation of noise in clip norms."""
Fraction = Annotated[str, _decimal(_NOT_NEGATIVE, _UP_TO_ONE)]
"""A decimal string from 0 to 1."""

_ABOVE_ZERO = Rule(
    "quantity(self).isGreaterThan(quantity('0'))", "must be above 0", lambda text: parse_quantity(text) > 0
)


def _size(least: str) -> StringForm:
    enough = Rule(
        f"quantity(self).compareTo(quantity('{least}')) >= 0",
        f'must be at least {least}: write it with a unit, such as "8Gi"',
        lambda text: parse_quantity(text) >= parse_quantity(least),
    )
    return StringForm(r"[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?", 'a size such as "8Gi" or "512Mi"', 32, (enough,))


Memory = Annotated[str, _size("256Mi")]
"""A Kubernetes quantity of bytes, at least the minimum for Ray: its object store needs 75Mi, and a pod reserves three
tenths of its memory for it."""
Size = Annotated[str, _size("1Mi")]
"""A Kubernetes quantity of bytes on a disk."""
Cpus = Annotated[str, StringForm(r"[0-9]+(\.[0-9]+)?m?", 'a number of cores such as "8" or "500m"', 32, (_ABOVE_ZERO,))]
"""A Kubernetes quantity of CPU cores above 0."""

Flag = Annotated[bool, Field(strict=True)]
"""true or false."""
Count = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
"""A whole number of 0 or more."""
UnitCount = Annotated[int, Field(strict=True, ge=1, le=2**40)]
"""A number of units, of 1 or more."""
Positive = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]
"""A whole number of 1 or more."""
Workers = Annotated[int, Field(strict=True, ge=1, le=MAX_WORKERS)]
"""A number of workers."""
