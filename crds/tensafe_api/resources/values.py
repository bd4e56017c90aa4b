"""The scalar types of the resources: decimal strings, quantities, names, URIs, and bounded whole numbers.

A value as read from YAML or JSON comes in. The same value goes out, or a sentence that states what is wrong with it and
how to write it. The blocks of this package use these types.

Numbers with a privacy meaning stay **strings** from the manifest to the ledger: a float would be rounded on the way,
and an epsilon that is rounded down is a false claim. `parse_decimal` returns the float for computations. CEL checks the
ranges, but its `double()` accepts `inf`, `+5` and `0x1p-2`; so each string also has a form. A bare number in such a
field is refused, because the API server refuses it too (the type of the field is string).

A form is a rule in CEL and not the schema's `pattern`. For a pattern the API server reports the regular expression, and
for a rule it reports our message with the fix.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tensafe_api.resources.base import Rule

STRING_ERROR = "string"
"""Type of the pydantic error of a string that does not have the form of its field."""
MIN_DELTA = 1e-300
"""The smallest δ. A float far below it has few digits, and the millionth of δ that pays for the noise would be 0."""

MIN_SIGMA, MAX_SIGMA = 1e-3, 1e9
"""Bounds of noise multipliers. Beyond them floats have too few digits for the accountants."""


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


def cel_matches(value: str, pattern: str) -> str:
    """CEL for: the string `value` has the form `pattern`, a regular expression without anchors and single quotes."""
    return f"{value}.matches(r'^({pattern})$')"


def pattern_of(cel: str) -> str | None:
    """The pattern of a rule that only checks the form of a string; None for any other rule."""
    start, end = cel_matches("self", "|").split("|")
    pattern = cel.removeprefix(start).removesuffix(end)
    return pattern if cel == cel_matches("self", pattern) else None


@dataclass(frozen=True)
class StringForm:
    """Annotation of a string field: the form that its value must have.

    Attributes:
        pattern: regular expression with the same meaning in Python and RE2, without anchors and single quotes.
        form: description of the form, which completes the sentence "... is not".
        max_length: maximum length in characters.
        rules: additional conditions on strings of this form.
        format: OpenAPI format in the schema; empty for none.
    """

    pattern: str
    form: str
    max_length: int = 253
    rules: tuple[Rule, ...] = ()
    format: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._read, core_schema.str_schema(strict=True))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        written: JsonSchemaValue = {"type": "string", "maxLength": self.max_length}
        if self.format:  # CEL sees a value of the format, not a string
            return written | {"format": self.format, "pattern": f"^({self.pattern})$"}
        form = cel_matches("self", self.pattern)
        written["x-kubernetes-validations"] = [
            {"rule": form, "message": f"is not {self.form}"},
            *(rule.schema() | {"rule": f"!{form} || {rule.cel}"} for rule in self.rules),
        ]
        return written

    def _read(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise _error(self._quoting(value))
        if len(value) > self.max_length:
            raise _error(f"is too long ({len(value)} characters): write at most {self.max_length}")
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise _error(f'"{value}" is not {self.form}')
        for rule in self.rules:
            if not rule.holds(value):
                raise _error(f'"{value}" {rule.message}')
        return value

    def _quoting(self, value: Any) -> str:
        if isinstance(value, bool):
            return f"is read as a boolean: write {self.form}, in quotes"
        if isinstance(value, (int, float)) and math.isfinite(value):
            fits = re.fullmatch(self.pattern, str(value), re.ASCII) and all(
                rule.holds(str(value)) for rule in self.rules
            )
            return "is a number without quotes: write " + (f'"{value}"' if fits else f"{self.form}, in quotes")
        return f"{value if isinstance(value, float) else 'it'} is not {self.form}"


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError(STRING_ERROR, "{message}", {"message": message})


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

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_WORD = r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?"
_OBJECT = (
    "the name of a Kubernetes object: lower-case letters, digits, - and ., with a letter or digit before and after "
    "each ."
)

ObjectName = Annotated[str, StringForm(_SUBDOMAIN, _OBJECT)]
"""Name of a Kubernetes object (DNS-1123 subdomain)."""
OptionalName = Annotated[str, StringForm(f"({_SUBDOMAIN})?", _OBJECT)]
"""Name of a Kubernetes object, or the empty string for the cluster's default."""
QueueName = Annotated[
    str, StringForm(f"({_SUBDOMAIN})?", "the name of a queue: at most 63 lower-case letters, digits, - and .", 63)
]
"""Name of a Kueue queue, which becomes the value of a label; or the empty string for none."""
QUALIFIED = rf"({_SUBDOMAIN}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{{0,61}}[A-Za-z0-9])?"
"""Form of the key of a label, an annotation or a taint."""
QualifiedName = Annotated[str, StringForm(QUALIFIED, "a key such as zone or example.com/zone", 317)]
"""Key of a taint."""
LabelValue = Annotated[
    str,
    StringForm(
        f"({_WORD})?",
        "the value of a label: at most 63 letters, digits, -, _ and ., with a letter or digit first and last",
        63,
    ),
]
"""Value of a label or a taint."""
DataKey = Annotated[
    str, StringForm(r"\.?[-_A-Za-z0-9][-_.A-Za-z0-9]*", "a key of a Secret or ConfigMap: letters, digits, -, _ and .")
]
"""Key in the data of a Secret or ConfigMap."""
JobName = Annotated[
    str,
    StringForm(
        r"[a-z]([-a-z0-9]*[a-z0-9])?",
        "the name of a job: lower-case letters, digits and -, with a letter first and no - at the end",
        40,
    ),
]
"""Name of a job: a DNS-1035 label of at most 40 characters, because KubeRay hangs with longer ones."""
_VISIBLE = r"[^\s\x0b]"
"""A character that is not white space. The vertical tab is listed because RE2, which the API server uses, does not
count it as white space."""
_STORES = r"(s3|gs)://[^/\s\x0b].*|file://.+|pvc://[a-z0-9]([-a-z0-9]{0,56}[a-z0-9])?(/.*)?|[^:\r\n]+"
_STORE_EXAMPLES = "s3://bucket/path/, gs://bucket/path/, file:///path, pvc://NAME/path"
URI = Annotated[
    str,
    StringForm(
        rf"{_STORES}|hf://.+|memory://.+",
        f"a location of data: {_STORE_EXAMPLES}, hf://datasets/owner/name or a path",
        1024,
    ),
]
"""Location of data to read: a URI or a path. A relative path is relative to the manifest and valid for local runs only.
memory:// names a data set that the Python API received as an object."""
StoreURI = Annotated[str, StringForm(_STORES, f"a location of checkpoints: {_STORE_EXAMPLES} or a path", 1024)]
"""Location of checkpoints to write: a URI or a path."""
Address = Annotated[str, Field(strict=True, min_length=1, max_length=8192)]
"""Location of something that was written: a URI, long enough for any path."""
Endpoint = Annotated[
    str, StringForm(rf"https?://[^\s\x0b/]+(/{_VISIBLE}*)?", "a URL such as https://minio.example:9000", 1024)
]
"""URL of an HTTP service."""
Timestamp = Annotated[
    str,
    StringForm(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
        "a time such as 2026-01-31T12:00:00Z",
        40,
        format="date-time",
    ),
]
"""A time in the form of RFC 3339."""
OneLine = Annotated[
    str, StringForm(rf"{_VISIBLE}(.*{_VISIBLE})?", "one line of text that starts and ends with a visible character")
]
"""One line of text: a name, a column, a revision."""
EnvName = Annotated[str, StringForm(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
"""Name of an environment variable."""
ResourceName = Annotated[
    str,
    StringForm(
        rf"{_SUBDOMAIN}/[A-Za-z0-9]([-_.A-Za-z0-9]{{0,61}}[A-Za-z0-9])?",
        "the name of a device such as nvidia.com/gpu",
        rules=(
            Rule(
                "!self.contains('kubernetes.io/')",
                "is not the name of a device, because Kubernetes reserves kubernetes.io: write a name such as "
                "nvidia.com/gpu",
                lambda text: "kubernetes.io/" not in text,
            ),
        ),
    ),
]
"""Name of an extended Kubernetes resource."""
IMAGE = r"[A-Za-z0-9][-_.A-Za-z0-9]*(:[0-9]+)?(/[-_.a-z0-9]+)*(:[-_.A-Za-z0-9]+)?(@[a-z0-9]+:[0-9a-f]{32,})?"
"""Form of the name of a container image."""
Image = Annotated[
    str,
    StringForm(
        IMAGE,
        "an image such as registry.example/tensafe-trainer:0.1, without spaces and without https://",
        512,
    ),
]
"""Name of a container image."""
RAY_VERSION = r"(2\.(5[2-9]|[6-9][0-9]|[1-9][0-9]{2})|([3-9]|[1-9][0-9])\.[0-9]{1,3})\.[0-9]{1,3}"
"""Form of a version of Ray whose clusters support token authentication. The chart's schema has the same pattern."""
RayVersion = Annotated[
    str,
    StringForm(
        rf"{RAY_VERSION}(rc[0-9]+)?",
        "a version of Ray such as 2.60.0, at least 2.52.0, the first one with token authentication",
        32,
    ),
]
"""Version of Ray, as KubeRay reads it: without the suffixes of an image tag."""

_RESERVED_VOLUMES = ("job", "key", "run", "shared-mem")
VolumeName = Annotated[
    str,
    StringForm(
        _LABEL,
        "the name of a volume: at most 63 lower-case letters, digits and -",
        63,
        (
            Rule(
                f"!(self in {list(_RESERVED_VOLUMES)}) && !self.startsWith('pvc-')",
                f"is reserved for volumes of the operator ({', '.join(_RESERVED_VOLUMES)}, pvc-...): write another "
                "name",
                lambda text: text not in _RESERVED_VOLUMES and not text.startswith("pvc-"),
            ),
        ),
    ),
]
"""Name of a volume of a pod."""
_RESERVED_PATHS = ("/etc/tensafe", "/var/run/tensafe", "/var/run/secrets", "/run/tensafe", "/run/secrets")


def _free(path: str) -> bool:
    return not any(
        f"{place}/".startswith(f"{path}/") or f"{path}/".startswith(f"{place}/") for place in _RESERVED_PATHS
    )


MountPath = Annotated[
    str,
    StringForm(
        r"(/[^/:\r\n]+)+",
        "an absolute path below / such as /mnt/data, without / at the end",
        1024,
        (
            Rule(
                r"!self.matches(r'/\.\.?(/|$)')",
                "must not contain . or .. as a directory: write the resolved path",
                lambda text: not re.search(r"/\.\.?(/|$)", text),
            ),
            Rule(
                f"!{list(_RESERVED_PATHS)}.exists(place, (place + '/').startsWith(self + '/') || "
                "(self + '/').startsWith(place + '/'))",
                f"contains or is inside a directory that the operator mounts ({', '.join(_RESERVED_PATHS)}): write a "
                "path such as /mnt/data",
                _free,
            ),
        ),
    ),
]
"""Directory of a volume in a container."""

Text = Annotated[str, Field(strict=True, max_length=1024)]
"""A string of at most 1,024 characters."""
Template = Annotated[str, Field(strict=True, min_length=1, max_length=32768)]
"""A chat template: at most 32,768 characters."""
Flag = Annotated[bool, Field(strict=True)]
"""true or false."""
Count = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
"""A whole number of 0 or more."""
UnitCount = Annotated[int, Field(strict=True, ge=1, le=2**40)]
"""A number of units, of 1 or more."""
Positive = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]
"""A whole number of 1 or more."""
LabelMap = Annotated[dict[str, Text], Field(max_length=64)]
"""A map from strings to strings, at most 64 entries."""
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]
"""A map from keys to values of labels, at most 64 entries."""
