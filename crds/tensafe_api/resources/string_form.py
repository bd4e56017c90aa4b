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
            raise _error(self.describe_other(value), form=self)
        if len(value) > self.max_length:
            raise _error(f"is too long ({len(value)} characters): write at most {self.max_length}")
        if not re.fullmatch(self.pattern, value, re.ASCII):
            raise _error(f'"{value}" is not {self.form}')
        for rule in self.rules:
            if not rule.holds(value):
                raise _error(f'"{value}" {rule.message}')
        return value

    def describe_other(self, value: Any, written: str | None = None) -> str:
        """What is wrong with a value that is no string, and how to write it.

        Args:
            written: the value as it stands in the manifest, without quotes; None if that is unknown.
        """
        # bool first, which Python counts as int; a whole number may be one that no float can hold
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
        read = str(value) if number else None
        fitting = next((text for text in (written, read) if text is not None and self._fits(text)), None)
        fix = f'"{fitting}"' if fitting is not None else f"{self.form}, in quotes"
        if isinstance(value, bool):
            return f"is read as a boolean: write {fix}"
        if number and written not in (None, read, fitting):
            return f"{written} is read as the number {read}: write {fix}"
        if number or (isinstance(value, float) and fitting is not None):
            return f"is a number without quotes: write {fix}"
        if value is None and written is not None:
            return f"is read as no value: write {fix}"
        return f"{(written or value) if isinstance(value, float) else 'it'} is not {self.form}"

    def _fits(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text, re.ASCII) is not None and all(rule.holds(text) for rule in self.rules)


def _error(message: str, **context: Any) -> PydanticCustomError:
    writable = message.encode(errors="backslashreplace").decode()  # a value may have half of a surrogate pair
    return PydanticCustomError(STRING_ERROR, "{message}", {"message": writable, **context})
