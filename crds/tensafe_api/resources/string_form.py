"""`StringForm`: the form that the value of a string field must have, as a check in Python and as a rule in CEL.

A form is a rule in CEL and not the schema's `pattern`. For a pattern the API server reports the regular expression, and
for a rule it reports our message with the fix.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tensafe_api.resources.base import Rule

STRING_ERROR = "string"
"""Type of the pydantic error of a string that does not have the form of its field."""


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
        if isinstance(value, (int, float)) and abs(value) < math.inf:  # also a whole number that no float can hold
            fits = re.fullmatch(self.pattern, str(value), re.ASCII) and all(
                rule.holds(str(value)) for rule in self.rules
            )
            return "is a number without quotes: write " + (f'"{value}"' if fits else f"{self.form}, in quotes")
        return f"{value if isinstance(value, float) else 'it'} is not {self.form}"


def _error(message: str) -> PydanticCustomError:
    writable = message.encode(errors="backslashreplace").decode()  # a value may have half of a surrogate pair
    return PydanticCustomError(STRING_ERROR, "{message}", {"message": writable})
