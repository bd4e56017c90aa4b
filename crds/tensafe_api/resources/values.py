"""The scalar types of the resources: decimal strings, quantities, names, URIs, and bounded whole numbers.

In comes one value as YAML or JSON read it; out goes the same value, or one sentence that says what is wrong with it and
how to write it. `block` and the classes beside it act next.

Numbers with a privacy meaning stay **strings** from the manifest to the ledger: a float would be rounded on the way,
and an epsilon rounded down is a false claim. `number` gives the float where one is computed with. The forms are needed
although CEL checks the ranges: CEL's `double()` lets `inf`, `+5` and `0x1p-2` through. A bare number in such a field is
refused, because the API server would refuse it too (the field's type is string).

A form is a rule in CEL as well, not the schema's `pattern`: of a pattern the API server says the regular expression,
and no mend.
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
"""Type of the pydantic error of a string that is not written as its field asks."""
MIN_DELTA = 1e-300
"""The least δ: a float far below it has few digits, and the millionth of it that pays for the noise would be 0."""

MIN_SIGMA, MAX_SIGMA = 1e-3, 1e9
"""Noise multipliers beyond which floats have too few digits for any accountant."""


def parse_decimal(value: str) -> float:
    """The value of a decimal string.

    Raises:
        ValueError: the string is no finite decimal number (`inf`, `nan`, `+5`, `0x1p-2`, `1e999`, a word).
    """
    if not re.fullmatch(_DECIMAL, value) or not math.isfinite(float(value)):
        raise ValueError(f"{value!r} is no finite decimal number")
    return float(value)


def parse_quantity(value: str) -> float:
    """The size of a Kubernetes quantity: cores for `500m` or `8`, bytes for `64Gi`.

    Raises:
        ValueError: the string is no quantity of the form that these resources take.
    """
    match = re.fullmatch(_QUANTITY, value)
    if match is None:
        raise ValueError(f"{value!r} is no quantity")
    return float(Decimal(match["digits"]) * _SUFFIXES[match["suffix"] or ""])


def cel_matches(value: str, pattern: str) -> str:
    """In CEL: whether the string `value` is of the form `pattern`, a regular expression without anchors and quotes."""
    return f"{value}.matches(r'^({pattern})$')"


def pattern_of(cel: str) -> str | None:
    """The form that a rule on a string asks for, where it asks for nothing else."""
    start, end = cel_matches("self", "|").split("|")
    pattern = cel.removeprefix(start).removesuffix(end)
    return pattern if cel == cel_matches("self", pattern) else None


@dataclass(frozen=True)
class StringForm:
    """Annotation of a string: the form that it is written in.

    Attributes:
        pattern: regular expression, the same in Python and RE2, without anchors and single quotes.
        form: completes the sentence "... is not".
        max_length: in characters.
        rules: further conditions on strings of this form.
        format: OpenAPI format that the schema names, if any.
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
        if self.format:  # to CEL no string, but what it stands for
            return written | {"format": self.format, "pattern": f"^({self.pattern})$"}
        form = cel_matches("self", self.pattern)
        written["x-kubernetes-validations"] = [
            {"rule": form, "message": f"is not {self.form}"},
            *(rule.schema() | {"rule": f"!{form} || {rule.cel}"} for rule in self.rules),
        ]
        return written

    def _read(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise _refusal(self._quoting(value))
        if len(value) > self.max_length:
            raise _refusal(f"is {len(value)} characters long: write at most {self.max_length}")
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise _refusal(f'"{value}" is not {self.form}')
        for rule in self.rules:
            if not rule.holds(value):
                raise _refusal(f'"{value}" {rule.message}')
        return value

    def _quoting(self, value: Any) -> str:
        if isinstance(value, bool):
            return f"is read as a truth value: write {self.form}, quoted"
        if isinstance(value, (int, float)) and math.isfinite(value):
            fits = re.fullmatch(self.pattern, str(value), re.ASCII) and all(
                rule.holds(str(value)) for rule in self.rules
            )
            return "is a bare number: write " + (f'"{value}"' if fits else self.form) + ", quoted"
        return f"{value if isinstance(value, float) else 'it'} is not {self.form}"


def _refusal(message: str) -> PydanticCustomError:
    return PydanticCustomError(STRING_ERROR, "{message}", {"message": message})


_DECIMAL = r"(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?"
_QUANTITY = r"(?P<digits>[0-9]+(\.[0-9]+)?)(?P<suffix>m|k|M|G|T|Ki|Mi|Gi|Ti)?"
_SUFFIXES = {"": Decimal(1), "m": Decimal("0.001")}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGT", start=1)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGT", start=1)}


DECIMAL = rf"-?{_DECIMAL}"
"""Form of a decimal string. A sign is read, and then refused by what the number must be above."""

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
            "must be from 1e-6 to 1e6, where float32 gradients still have their digits",
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

_SOME = Rule("quantity(self).isGreaterThan(quantity('0'))", "must be above 0", lambda text: parse_quantity(text) > 0)


def _size(least: str) -> StringForm:
    enough = Rule(
        f"quantity(self).compareTo(quantity('{least}')) >= 0",
        f'must be at least {least}: write its unit, as in "8Gi"',
        lambda text: parse_quantity(text) >= parse_quantity(least),
    )
    return StringForm(r"[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?", 'a size such as "8Gi" or "512Mi"', 32, (enough,))


Memory = Annotated[str, _size("256Mi")]
"""A Kubernetes quantity of bytes, at least what Ray starts with: its object store, of which a pod gives three tenths,
takes 75Mi."""
Size = Annotated[str, _size("1Mi")]
"""A Kubernetes quantity of bytes on a disk."""
Cpus = Annotated[str, StringForm(r"[0-9]+(\.[0-9]+)?m?", 'a number of cores such as "8" or "500m"', 32, (_SOME,))]
"""A Kubernetes quantity of CPU cores above 0."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_WORD = r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?"
_OBJECT = "the name of a Kubernetes object: lower-case letters, digits, - and ., a letter or digit around each ."

ObjectName = Annotated[str, StringForm(_SUBDOMAIN, _OBJECT)]
"""Name of a Kubernetes object (DNS-1123 subdomain)."""
OptionalName = Annotated[str, StringForm(f"({_SUBDOMAIN})?", _OBJECT)]
"""Name of a Kubernetes object, or the empty string for the cluster's default."""
QueueName = Annotated[
    str, StringForm(f"({_SUBDOMAIN})?", "the name of a queue: at most 63 lower-case letters, digits, - and .", 63)
]
"""Name of a Kueue queue, which is the value of a label; or the empty string for none."""
QUALIFIED = rf"({_SUBDOMAIN}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{{0,61}}[A-Za-z0-9])?"
"""Form of the key of a label, an annotation or a taint."""
QualifiedName = Annotated[str, StringForm(QUALIFIED, "a key such as zone or example.com/zone", 317)]
"""Key of a taint."""
LabelValue = Annotated[
    str,
    StringForm(
        f"({_WORD})?",
        "the value of a label: at most 63 letters, digits, -, _ and ., a letter or digit first and last",
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
        "a job's name: lower-case letters, digits and -, a letter first, no - at the end",
        40,
    ),
]
"""Name of a job: a DNS-1035 label of at most 40 characters, because longer ones wedge KubeRay."""
_VISIBLE = r"[^\s\x0b]"
"""What is no blank: to RE2, the API server's, a vertical tab is none."""
_STORES = r"(s3|gs)://[^/\s\x0b].*|file://.+|pvc://[a-z0-9]([-a-z0-9]{0,56}[a-z0-9])?(/.*)?|[^:\r\n]+"
_IN_STORES = "s3://bucket/path/, gs://bucket/path/, file:///path, pvc://claim/path"
URI = Annotated[
    str,
    StringForm(
        rf"{_STORES}|hf://.+|memory://.+", f"a place of data: {_IN_STORES}, hf://datasets/owner/name or a path", 1024
    ),
]
"""Where data is read: a URI, or a path (a relative one is relative to the manifest, and for local runs only). memory://
is how a job names a data set that Python handed over."""
StoreURI = Annotated[str, StringForm(_STORES, f"a place of checkpoints: {_IN_STORES} or a path", 1024)]
"""Where checkpoints are written: a URI, or a path."""
Address = Annotated[str, Field(strict=True, min_length=1, max_length=8192)]
"""Where something lies that was written: a URI of any length that a path can come to."""
Endpoint = Annotated[
    str, StringForm(rf"https?://[^\s\x0b/]+(/{_VISIBLE}*)?", "an address such as https://minio.example:9000", 1024)
]
"""Address of an HTTP service."""
Timestamp = Annotated[
    str,
    StringForm(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
        "a time such as 2026-01-31T12:00:00Z",
        40,
        format="date-time",
    ),
]
"""A time as RFC 3339 writes it."""
OneLine = Annotated[
    str, StringForm(rf"{_VISIBLE}(.*{_VISIBLE})?", "text that begins and ends with a visible character")
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
                "is no name of a device, since kubernetes.io is Kubernetes' own: write one such as nvidia.com/gpu",
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
        "an image such as registry.example/tensafe-trainer:0.1, without blanks and https://",
        512,
    ),
]
"""Name of a container image."""
RAY_VERSION = r"(2\.(5[2-9]|[6-9][0-9]|[1-9][0-9]{2})|([3-9]|[1-9][0-9])\.[0-9]{1,3})\.[0-9]{1,3}"
"""Form of a version of Ray whose clusters can ask for a token. The chart's schema has the same."""
RayVersion = Annotated[
    str,
    StringForm(
        rf"{RAY_VERSION}(rc[0-9]+)?",
        "a version of Ray such as 2.60.0, at least 2.52.0, whose clusters ask for a token",
        32,
    ),
]
"""Version of Ray, as KubeRay reads it: without what an image's tag adds."""

_VOLUMES = ("job", "key", "run", "shared-mem")
VolumeName = Annotated[
    str,
    StringForm(
        _LABEL,
        "the name of a volume: at most 63 lower-case letters, digits and -",
        63,
        (
            Rule(
                f"!(self in {list(_VOLUMES)}) && !self.startsWith('pvc-')",
                f"is a name of the pods' own volumes ({', '.join(_VOLUMES)}, pvc-...): choose another name",
                lambda text: text not in _VOLUMES and not text.startswith("pvc-"),
            ),
        ),
    ),
]
"""Name of a volume of a pod."""
_PLACES = ("/etc/tensafe", "/var/run/tensafe", "/var/run/secrets", "/run/tensafe", "/run/secrets")


def _free(path: str) -> bool:
    return not any(f"{place}/".startswith(f"{path}/") or f"{path}/".startswith(f"{place}/") for place in _PLACES)


MountPath = Annotated[
    str,
    StringForm(
        r"(/[^/:\r\n]+)+",
        "an absolute path below / such as /mnt/data, without / at its end",
        1024,
        (
            Rule(
                r"!self.matches(r'/\.\.?(/|$)')",
                "must not lead through . or ..: write the path that it comes to",
                lambda text: not re.search(r"/\.\.?(/|$)", text),
            ),
            Rule(
                f"!{list(_PLACES)}.exists(place, (place + '/').startsWith(self + '/') || "
                "(self + '/').startsWith(place + '/'))",
                f"covers what the pods mount themselves ({', '.join(_PLACES)}): choose a place such as /mnt/data",
                _free,
            ),
        ),
    ),
]
"""Where a volume appears in a container."""

Text = Annotated[str, Field(strict=True, max_length=1024)]
"""A string of any form, at most 1,024 characters."""
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
