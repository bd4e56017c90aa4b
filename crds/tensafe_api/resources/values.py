"""The scalar types of the resources: decimal strings, quantities, names, URIs, and bounded whole numbers.

In comes one value as YAML or JSON read it; out goes the same value, or one sentence that says what is wrong with it and
how to write it. `block` and the classes beside it act next.

Numbers with a privacy meaning stay **strings** from the manifest to the ledger: a float would be rounded on the way,
and an epsilon rounded down is a false claim. `number` gives the float where one is computed with. The patterns are
needed although CEL checks the ranges: CEL's `double()` lets `inf`, `+5` and `0x1p-2` through. A bare number in such a
field is refused, because the API server would refuse it too (the field's type is string).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tensafe_api.resources.block import Rule

STRING_ERROR = "string"
"""Type of the pydantic error of a string that is not written as its field asks."""
LEAST_DELTA = 1e-300
"""The least δ: a float far below it has few digits, and the millionth of it that pays for the noise would be 0."""

LEAST_SIGMA, MOST_SIGMA = 1e-3, 1e9
"""Noise multipliers beyond which floats have too few digits for any accountant."""


def number(value: str) -> float:
    """The value of a decimal string.

    Raises:
        ValueError: the string is no finite decimal number (`inf`, `nan`, `+5`, `0x1p-2`, `1e999`, a word).
    """
    if not re.fullmatch(_DECIMAL, value) or not math.isfinite(float(value)):
        raise ValueError(f"{value!r} is no finite decimal number")
    return float(value)


def quantity(value: str) -> float:
    """The size of a Kubernetes quantity: cores for `500m` or `8`, bytes for `64Gi`.

    Raises:
        ValueError: the string is no quantity of the form that these resources take.
    """
    match = re.fullmatch(_QUANTITY, value)
    if match is None:
        raise ValueError(f"{value!r} is no quantity")
    return float(Decimal(match["digits"]) * _SUFFIXES[match["suffix"] or ""])


@dataclass(frozen=True)
class Written:
    """Annotation of a string: the form that it is written in.

    Attributes:
        pattern: regular expression, the same in Python and RE2, without anchors.
        form: completes the sentence "... is not".
        max_length: in characters.
        rules: further conditions, checked once the pattern matched.
        hint: what to say of a string that does not match the pattern, where more can be said than the form.
        format: OpenAPI format that the schema names, if any.
    """

    pattern: str
    form: str
    max_length: int = 253
    rules: tuple[Rule, ...] = field(default=())
    format: str = ""
    hint: Callable[[str], str] = field(default=lambda _: "")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._read, core_schema.str_schema(strict=True))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        written: JsonSchemaValue = {"type": "string", "maxLength": self.max_length, "pattern": f"^({self.pattern})$"}
        if self.format:
            written["format"] = self.format
        if self.rules:
            written["x-kubernetes-validations"] = [rule.schema() for rule in self.rules]
        return written

    def _read(self, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            raise _refusal(self._quoting(value, to_camel(info.field_name or "it")))
        if len(value) > self.max_length:
            raise _refusal(f"is {len(value)} characters long: write at most {self.max_length}")
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise _refusal(f'"{value}" {self.hint(value) or f"is not {self.form}"}')
        for rule in self.rules:
            if not rule.holds(value):
                raise _refusal(f'"{value}" {rule.message}')
        return value

    def _quoting(self, value: Any, name: str) -> str:
        if isinstance(value, bool):
            return f"is read as a truth value: write {name} as {self.form}, quoted"
        if isinstance(value, (int, float)) and math.isfinite(value):
            return f'is a bare number: write {name}: "{value}", quoted'
        return f"{value if isinstance(value, float) else 'it'} is not {self.form}"


def _refusal(message: str) -> PydanticCustomError:
    return PydanticCustomError(STRING_ERROR, "{message}", {"message": message})


_DECIMAL = r"(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?"
_QUANTITY = r"(?P<digits>[0-9]+(\.[0-9]+)?)(?P<suffix>m|k|M|G|T|Ki|Mi|Gi|Ti)?"
_SUFFIXES = {"": Decimal(1), "m": Decimal("0.001")}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGT", start=1)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGT", start=1)}


_FINITE = Rule("double(self) < 1e300", "must be below 1e300", lambda text: float(text) < 1e300)
_POSITIVE = Rule("double(self) > 0.0", "must be above 0", lambda text: float(text) > 0)
_LEAST_DELTA = Rule(
    f"double(self) >= {LEAST_DELTA}", f"must be at least {LEAST_DELTA}", lambda text: float(text) >= LEAST_DELTA
)
_BELOW_ONE = Rule("double(self) < 1.0", "must be below 1", lambda text: float(text) < 1)
_UP_TO_ONE = Rule("double(self) <= 1.0", "must be at most 1", lambda text: float(text) <= 1)


def _decimal(*rules: Rule) -> Written:
    least = "must be above 0" if _POSITIVE in rules else "must not be below 0"

    def hint(text: str) -> str:
        return least if text.startswith("-") and re.fullmatch(_DECIMAL, text[1:], re.ASCII) else ""

    return Written(_DECIMAL, 'a decimal number such as "8", "0.05" or "2e-4"', 32, rules, hint=hint)


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
    str, _decimal(Rule("double(self) <= 100.0", "must be at most 100", lambda text: float(text) <= 100))
]
"""A decimal string from 0 to 100."""
GradNorm = Annotated[
    str,
    _decimal(
        _POSITIVE,
        Rule(
            "double(self) >= 1e-6 && double(self) <= 1e6",
            "must be from 1e-6 to 1e6, where float32 gradients still have their digits",
            lambda text: 1e-6 <= float(text) <= 1e6,
        ),
    ),
]
"""A decimal string from 1e-6 to 1e6."""
LossScale = Annotated[
    str,
    _decimal(
        _POSITIVE,
        Rule(
            "double(self) >= 1.0 && double(self) <= 16777216.0",
            "must be from 1 to 16777216",
            lambda text: 1 <= float(text) <= 2**24,
        ),
    ),
]
"""A decimal string from 1 to 2^24."""
NonNegativeDecimal = Annotated[str, _decimal(_FINITE)]
"""A decimal string of 0 or more (the pattern has no sign)."""
Delta = Annotated[str, _decimal(_LEAST_DELTA, _BELOW_ONE)]
"""A decimal string from 1e-300 to below 1."""
Share = Annotated[str, _decimal(_BELOW_ONE)]
"""A decimal string from 0 to below 1."""
Rate = Annotated[str, _decimal(_POSITIVE, _UP_TO_ONE)]
"""A decimal string above 0, up to 1."""
Fraction = Annotated[str, _decimal(_UP_TO_ONE)]
"""A decimal string from 0 to 1."""

_SOME = Rule(
    "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
    "must be above 0",
    lambda text: quantity(text) > 0,
)
Memory = Annotated[
    str, Written(r"[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?", 'a size such as "8Gi" or "512Mi"', 32, (_SOME,))
]
"""A Kubernetes quantity of bytes above 0."""
Cpus = Annotated[str, Written(r"[0-9]+(\.[0-9]+)?m?", 'a number of cores such as "8" or "500m"', 32, (_SOME,))]
"""A Kubernetes quantity of CPU cores above 0."""

ObjectName = Annotated[
    str,
    Written(
        r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?",
        "the name of a Kubernetes object: lower-case letters, digits, - and .",
    ),
]
"""Name of a Kubernetes object (DNS-1123 subdomain)."""
OptionalName = Annotated[
    str,
    Written(
        r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?",
        "the name of a Kubernetes object: lower-case letters, digits, - and .",
    ),
]
"""Name of a Kubernetes object, or the empty string for the cluster's default."""
JobName = Annotated[
    str,
    Written(
        r"[a-z]([-a-z0-9]*[a-z0-9])?",
        "a job's name: lower-case letters, digits and -, a letter first, no - at the end",
        40,
    ),
]
"""Name of a job: a DNS-1035 label of at most 40 characters, because longer ones wedge KubeRay."""
URI = Annotated[
    str,
    Written(
        r"[a-z][a-z0-9+.-]*://.+|[^:\r\n]+",
        "a URI such as s3://bucket/path/, file:///path, pvc://claim/path or hf://owner/name, or a path",
        1024,
    ),
]
"""A place: a URI of any scheme, or a path (a relative one is relative to the manifest, and for local runs only)."""
Address = Annotated[str, Field(strict=True, min_length=1, max_length=8192)]
"""Where something lies that was written: a URI of any length that a path can come to."""
Endpoint = Annotated[str, Written(r"https?://[^\s/]+(/\S*)?", "an address such as https://minio.example:9000", 1024)]
"""Address of an HTTP service."""
Timestamp = Annotated[
    str,
    Written(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
        "a time such as 2026-01-31T12:00:00Z",
        40,
        format="date-time",
    ),
]
"""A time as RFC 3339 writes it."""
Word = Annotated[str, Written(r"\S(.*\S)?", "text that begins and ends with a visible character")]
"""One line of text: a name, a column, a revision."""
EnvName = Annotated[str, Written(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
"""Name of an environment variable."""
ResourceName = Annotated[
    str, Written(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a device such as nvidia.com/gpu")
]
"""Name of an extended Kubernetes resource."""
MountPath = Annotated[str, Written(r"/[^:\r\n]*", "an absolute path such as /mnt/data", 1024)]
"""Where a volume appears in a container."""

Text = Annotated[str, Field(strict=True, max_length=1024)]
"""A string of any form, at most 1,024 characters."""
Template = Annotated[str, Field(strict=True, min_length=1, max_length=32768)]
"""A chat template: at most 32,768 characters."""
Flag = Annotated[bool, Field(strict=True)]
"""true or false."""
Count = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
"""A whole number of 0 or more."""
Positive = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]
"""A whole number of 1 or more."""
LabelMap = Annotated[dict[str, Text], Field(max_length=64)]
"""A map from strings to strings, at most 64 entries."""
