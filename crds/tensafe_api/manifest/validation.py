"""Validates a manifest and reports all of its problems at once.

The mapping of a manifest comes in. The job goes out, or a `ManifestError` with every problem: the path of the field and
one sentence with the fix.

pydantic does not run the rules of a block while a field of the block, or of any block below it, is wrong. So the rules
are evaluated here once more, over all fields that could be read. Each rule that needs only valid fields is then
reported in the first round.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from tensafe_api.manifest.yaml_io import WrittenScalars
from tensafe_api.resources.base import DUPLICATE_ERROR, RULE_ERROR, Block, block_of, fields_of
from tensafe_api.resources.job import API_VERSION, KIND, TenSafeTrainingJob
from tensafe_api.resources.string_form import STRING_ERROR
from tensafe_api.sanitize import clean

Location = tuple[str | int, ...]
MAX_PROBLEMS = 50
"""Maximum number of wrong fields to report, and of broken rules. More would not be read, and each search for the
nearest name takes time.
"""
_UNKNOWN = "extra_forbidden"


@dataclass(frozen=True)
class Problem:
    """One problem. `str()` is one line without control characters, which a terminal would obey.

    Attributes:
        path: of the field, such as `spec.privacy.targetDelta`; empty: no single field.
        message: a sentence with the fix.
        is_unknown_field: whether this release does not have the field.
        rule: the `Rule.id` of a broken rule between fields, such as `EpochsOrSteps`; empty: another problem.
    """

    path: str
    message: str
    is_unknown_field: bool = False
    rule: str = ""

    def __str__(self) -> str:
        return clean(f"{self.path}: {self.message}" if self.path else self.message)


class ManifestError(ValueError):
    """A manifest that cannot be run. `problems` lists the problems, `str()` has one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(map(str, self.problems)))


def parse_job(data: Mapping[str, Any], written: WrittenScalars | None = None) -> TenSafeTrainingJob:
    """The job that a mapping describes. Keys are camelCase. As in the API server, null means absent.

    Args:
        written: the text of the mapping, from which problems quote numbers; None: as Python writes them.

    Raises:
        ManifestError: the mapping has problems. All are listed, or the first ones and the number of the others.
    """
    sound = without_nulls(data)
    wrong_kind = _wrong_kind(sound)
    if wrong_kind:
        raise ManifestError(wrong_kind)
    try:
        job = TenSafeTrainingJob.model_validate(sound, by_alias=True, by_name=False)
    except ValidationError as error:
        found = error.errors(include_url=False)
        details = [each for each in found if each["type"] != RULE_ERROR and not _follows_from_an_entry(each, found)]
        wrong = frozenset(detail["loc"] for detail in details if detail["type"] != _UNKNOWN)
        broken = list(_broken_rules(TenSafeTrainingJob, sound, (), wrong))
        reported = details[:MAX_PROBLEMS]
        problems = [
            Problem(_path(detail["loc"]), _sentence(detail, written), detail["type"] == _UNKNOWN) for detail in reported
        ]
        problems += broken[:MAX_PROBLEMS]
        if more := len(details) + len(broken) - len(problems):
            problems.append(Problem("", f"and {more} more"))
        raise ManifestError([*_missing_type(sound), *problems]) from None
    if missing := _missing_type(sound):
        raise ManifestError(missing)
    return job


def _follows_from_an_entry(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Whether a list counts as too short only because an entry of it is wrong."""
    at = detail["loc"]
    inside = (each["loc"] for each in details if len(each["loc"]) > len(at))
    return detail["type"] == "too_short" and any(location[: len(at)] == at for location in inside)


def without_nulls(value: Any) -> Any:
    """The value without keys that are null. The API server removes them too."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def unknown_field(block: type[Block], name: str, where: str) -> str:
    """The message about a field that a block does not have: the nearest name there, or where the field belongs."""
    known = list(fields_of(block))
    folded = {candidate.lower(): candidate for candidate in known}
    nearest = difflib.get_close_matches(to_camel(name).lower(), folded, n=1, cutoff=0.7)
    if nearest:
        return f"unknown field: did you mean {folded[nearest[0]]}?"
    elsewhere = next((path for path in _paths(TenSafeTrainingJob, "") if path.split(".")[-1] == name), None)
    if elsewhere:
        return f"unknown field here: did you mean {elsewhere}?"
    return f"unknown field: {where or 'a job'} has {', '.join(known)}"


class _NotReadable(Exception):
    """A rule reads a field that is missing or wrong."""


class _Wrong:
    """A value that is present but invalid. A rule can only check whether it is present."""

    def _refuse(self, *_: object) -> Any:
        raise _NotReadable

    __eq__ = __bool__ = __hash__ = __getattr__ = _refuse  # other operations raise TypeError


class _Readable:
    """The readable part of a block. A missing required field raises `_NotReadable`; an invalid one is `_Wrong`."""

    def __init__(self, block: type[Block], data: Mapping[str, Any], at: Location, wrong: frozenset[Location]) -> None:
        self._block, self._data, self._at, self._wrong = block, data, at, wrong

    def __getattr__(self, name: str) -> Any:
        field = self._block.model_fields[name]
        alias = field.alias or name
        if alias not in self._data:
            if field.is_required():
                raise _NotReadable
            return field.get_default(call_default_factory=True)
        at, value = (*self._at, alias), self._data[alias]
        if at in self._wrong:
            return _Wrong()
        inner = block_of(field.annotation)
        if inner and isinstance(value, Mapping):
            return _Readable(inner, value, at, self._wrong)
        if inner and isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
            return [_Readable(inner, item, (*at, number), self._wrong) for number, item in enumerate(value)]
        if any(location[: len(at)] == at for location in self._wrong):
            return _Wrong()
        return value


def _broken_rules(
    block: type[Block], data: Mapping[str, Any], at: Location, wrong: frozenset[Location]
) -> Iterator[Problem]:
    """The broken rules of a block and of all blocks in it, without rules that read an invalid field."""
    readable = _Readable(block, data, at, wrong)
    for rule in block.rules:
        try:
            kept = rule.holds(readable)
        except (_NotReadable, TypeError):
            continue
        if not kept:
            yield Problem(_path(at) + rule.path, rule.message, rule=rule.id)
    for name, field in fields_of(block).items():
        inner = block_of(field.annotation)
        if inner is None or name not in data or (*at, name) in wrong:
            continue
        value = data[name]
        items = list(enumerate(value)) if isinstance(value, list) else []
        blocks = [((*at, name), value), *(((*at, name, number), item) for number, item in items)]
        for location, item in blocks:
            if isinstance(item, Mapping):
                yield from _broken_rules(inner, item, location, wrong)


def _wrong_kind(data: Mapping[str, Any]) -> list[Problem]:
    """The problem of a manifest of another kind or version. Its other problems are not shown: they would mislead."""
    problems = []
    if "kind" in data and data["kind"] != KIND:
        problems.append(Problem("kind", f"{_shown(data['kind'])} is not supported: write {KIND}"))
    if "apiVersion" in data and data["apiVersion"] != API_VERSION:
        problems.append(Problem("apiVersion", f"{_shown(data['apiVersion'])} is not supported: write {API_VERSION}"))
    return problems


def _missing_type(data: Mapping[str, Any]) -> list[Problem]:
    head = {"apiVersion": API_VERSION, "kind": KIND}
    return [Problem(name, f"is missing: write {name}: {value}") for name, value in head.items() if name not in data]


_WHOLE = "must be a whole number without quotes, not {shown}"
_MAPPING = "must be a mapping of names to values, not {shown}"
_SENTENCES = {
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "finite_number": _WHOLE,
    "bool_type": "must be true or false, not {shown}",
    "string_type": "must be a string, not {shown}: write it in quotes",
    "greater_than_equal": "must be at least {ge}, not {shown}",
    "less_than_equal": "must be at most {le}, not {shown}",
    "too_long": "has too many entries: write at most {max_length}",
    "too_short": "has too few entries: write at least {min_length}",
    "string_too_long": "is too long: write at most {max_length} characters",
    "string_too_short": "is empty: write a value, or remove the field",
    "tuple_type": "must be a list such as [a, b], not {shown}",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
}
"""The sentence for each of pydantic's types of errors, with the value and pydantic's own figures in it."""


def _sentence(detail: ErrorDetails, written: WrittenScalars | None) -> str:
    """An error of pydantic as one sentence with the fix."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    text = written.find(detail["loc"], value) if written and not isinstance(value, str) else None
    if kind == STRING_ERROR and "form" in context:
        return str(context["form"].describe_other(value, text))
    if kind in (STRING_ERROR, DUPLICATE_ERROR):
        return str(context["message"])
    shown = _shown(value, text)
    match kind:
        case "missing":
            return _missing(detail["loc"])
        case "extra_forbidden":
            parent = detail["loc"][:-1]
            return unknown_field(_block_at(parent), str(detail["loc"][-1]), _path(parent))
        case "literal_error":
            return _none_of(text or str(value), shown, str(context["expected"]))
        case "model_type" | "model_attributes_type" if _is_name_of_block(value, detail["loc"]):
            return f"must be a mapping, not {shown}: write {{name: {value}}}"
    form = _SENTENCES.get(kind)
    return form.format(shown=shown, **context) if form else str(detail["msg"])


def _is_name_of_block(value: Any, location: Location) -> bool:
    """Return whether a text is where a block with a field `name` is expected."""
    return isinstance(value, str) and "name" in fields_of(_block_at(location))


def _missing(location: Location) -> str:
    name = str(location[-1])
    description = fields_of(_block_at(location[:-1]))[name].description or ""
    first = description.split(". ")[0].rstrip(".")
    return f"is missing and has no default: write {name} ({first[:1].lower()}{first[1:]})"


def _none_of(text: str, shown: str, expected: str) -> str:
    words = expected.replace("'", "").replace(" or ", ", ").split(", ")
    folded = {word.lower(): word for word in words}
    nearest = difflib.get_close_matches(text.lower(), folded, n=1, cutoff=0.8)  # INT4 is no slip for INT8
    fix = f"did you mean {folded[nearest[0]]}?" if nearest else "choose one of them"
    return f"{shown} is none of {', '.join(words)}: {fix}"


def _block_at(location: Location) -> type[Block]:
    """The block class at a location."""
    block: type[Block] = TenSafeTrainingJob
    for name in location:
        if isinstance(name, str):
            inner = block_of(fields_of(block)[name].annotation)
            if inner is None:
                raise KeyError(_path(location))
            block = inner
    return block


def _paths(block: type[Block], at: str) -> Iterator[str]:
    """The paths of all fields below a block, without the status."""
    for name, field in fields_of(block).items():
        if name == "status":
            continue
        path = f"{at}.{name}" if at else name
        yield path
        inner = block_of(field.annotation)
        if inner:
            yield from _paths(inner, path)


def _path(location: Location) -> str:
    """A location in the form that users write: `spec.cluster.env[0].name`."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in location if step != "[key]"]
    return "".join(steps).removeprefix(".")


def _shown(value: Any, text: str | None = None) -> str:
    text = text or json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
