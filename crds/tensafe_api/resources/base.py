"""The base classes of all resources: blocks of fields, and rules between the fields.

The classes of this package (`model`, `data`, `training`, `cluster`, `status`, `job`, `ledger`) declare the resources.
From one declaration follow the validated Python objects (`tensafe_api.manifest.text`) and the CustomResourceDefinition
that the API server enforces (`tensafe_api.schema.crd`).

A rule between fields is declared once, as a `Rule` beside its block: the CEL text for the API server, the predicate for
Python, and one message for both. Two declarations could come to differ; the cluster would then refuse a manifest that
runs on a laptop. A `Transition` compares an update with the value before it. Only the API server sees both, so a
transition has no predicate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

RULE_ERROR = "rule"
"""Type of the pydantic error of a broken rule."""
DUPLICATE_ERROR = "duplicate"
"""Type of the pydantic error of a list in which an entry occurs twice."""


@dataclass(frozen=True)
class Rule:
    """A condition on a value, for the API server and for Python.

    Attributes:
        cel: the condition in CEL; `self` is the value (a block, or a string).
        message: one sentence: the field, what is wrong, and the fix.
        holds: the same condition in Python, over the block (absent fields are None) or the string.
        path: the field of the block that the message is about, as CEL writes it (`.unit.atLeast`). Empty: the message
            is about the value itself.
        id: names a rule between fields, for `Problem.rule`. A rule about one string has none.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    path: str = ""
    id: str = ""

    def schema(self) -> dict[str, str]:
        """The rule as an entry of `x-kubernetes-validations`."""
        return _validation(self.cel, self.message, self.path)


@dataclass(frozen=True)
class Transition:
    """A condition on an update, which only the API server checks: `oldSelf` is the value before the update.

    Attributes:
        also_first: whether the condition also applies when the value is set for the first time. `oldSelf` is then an
            optional in CEL.
    """

    cel: str
    message: str
    path: str = ""
    also_first: bool = False

    def schema(self) -> dict[str, Any]:
        """The transition as an entry of `x-kubernetes-validations`."""
        written: dict[str, Any] = _validation(self.cel, self.message, self.path) | {"reason": "FieldValueForbidden"}
        return written | {"optionalOldSelf": True} if self.also_first else written


@dataclass(frozen=True)
class Unique:
    """Annotation of a list without duplicates: of its items, or of the values of these `keys` of its items.

    For the API server the list has the type `set` or `map`, so that two writers can each own their entries.
    """

    keys: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._refuse_duplicates, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        written = handler(schema)
        written["x-kubernetes-list-type"] = "map" if self.keys else "set"
        if self.keys:
            written["x-kubernetes-list-map-keys"] = list(self.keys)
        return written

    def _refuse_duplicates(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        identities = [tuple(getattr(item, key) for key in self.keys) if self.keys else item for item in items]
        for position, identity in enumerate(identities):
            if identity in identities[:position]:
                name = " ".join(map(str, identity)) if self.keys else identity
                raise PydanticCustomError(
                    DUPLICATE_ERROR, "{message}", {"message": f'has "{name}" twice: keep one of them'}
                )
        return items


@dataclass(frozen=True)
class Opaque:
    """Annotation of a mapping that the API server accepts as it is, because its schema would make the CRD too large.

    On a block, Python still checks the fields, so the operator reports what is wrong.
    """

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class Block(BaseModel):
    """A mapping of the manifest: camelCase in YAML, snake_case in Python, immutable, without unknown fields.

    A block whose fields are all optional has the empty block as its default and is never None. So "absent" and "empty"
    mean the same.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    transitions: ClassVar[tuple[Transition, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [rule.message for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError(RULE_ERROR, "{messages}", {"messages": "; ".join(broken)})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The block's JSON schema, with its rules and with the defaults of fields that are blocks."""
        reference = handler(core)
        schema = handler.resolve_ref_schema(reference)
        validations = [rule.schema() for rule in cls.rules] + [change.schema() for change in cls.transitions]
        if validations:
            schema["x-kubernetes-validations"] = validations
        for field in cls.model_fields.values():
            default = field.get_default(call_default_factory=True)
            if isinstance(default, Block) and not isinstance(default, StatusBlock):
                schema["properties"][alias_of(field)]["default"] = default.model_dump(mode="json", exclude_unset=True)
        return reference


class StatusBlock(Block):
    """A mapping of the status: a block whose fields can be assigned. Assigned values are validated.

    A newer release may have written more fields, which this one does not read: it must run after a rollback.
    """

    model_config = ConfigDict(frozen=False, validate_assignment=True, extra="ignore")


class StrictStatusBlock(StatusBlock):
    """A mapping of the status in which every field counts: one that this release does not know is refused."""

    model_config = ConfigDict(extra="forbid")


def alias_of(field: FieldInfo) -> str:
    """The name of a field in a manifest."""
    if field.alias is None:
        raise TypeError("every field of a block has an alias")
    return field.alias


def fields_of(block: type[Block]) -> dict[str, FieldInfo]:
    """The fields of a block by their names in a manifest."""
    return {alias_of(field): field for field in block.model_fields.values()}


def block_of(annotation: object) -> type[Block] | None:
    """The block class in an annotation (`X`, `X | None`, `tuple[X, ...]`); None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return annotation
    for inner in get_args(annotation):
        found = block_of(inner)
        if found:
            return found
    return None


def _validation(cel: str, message: str, path: str) -> dict[str, str]:
    entry = {"rule": cel, "message": message}
    return entry | {"fieldPath": path} if path else entry
