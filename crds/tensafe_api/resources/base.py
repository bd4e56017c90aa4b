"""What every part of a resource is made of: blocks of fields, and rules between the fields.

In come the classes of this package (`model`, `data`, `learning`, `cluster`, `status`, `job`); out go, from the same
declarations, validated Python objects and the CustomResourceDefinition that the API server enforces. `tensafe_api.crd`
and `tensafe_api.manifest` act next.

A rule between fields is declared once, as a `Rule` beside its block: the CEL text for the API server, the predicate for
Python, and one message for both. Declared in two places they would drift apart, and a manifest that runs on a laptop
would be refused by the cluster. `Transition`s compare an update with what stood before; only the API server sees both,
so they have no predicate.
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
"""Type of the pydantic error that a broken rule raises."""
DUPLICATE_ERROR = "twin"
"""Type of the pydantic error of a list in which something occurs twice."""


@dataclass(frozen=True)
class Rule:
    """One condition on a value, for the API server and for Python alike.

    Attributes:
        cel: the condition in CEL; `self` is the value (a block, or a string).
        message: one sentence that names the field and the mend.
        holds: the same condition in Python, over the block (absent fields are None) or the string.
        path: the field of the block that the message is about, as CEL writes it (`.unit.atLeast`); empty: the
            value itself.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    path: str = ""

    def schema(self) -> dict[str, str]:
        """The rule as an entry of `x-kubernetes-validations`."""
        return _validation(self.cel, self.message, self.path)


@dataclass(frozen=True)
class Transition:
    """One condition on an update, for the API server alone: `oldSelf` is the value before it.

    Attributes:
        also_first: whether it holds where there was no value before as well: `oldSelf` is an optional then.
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
    """Annotation of a list in which nothing occurs twice: its items, or the values of these keys of its items.

    For the API server it is a list of the type `set` or `map`: two writers may then each own their entries.
    """

    keys: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._refuse_twins, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        written = handler(schema)
        written["x-kubernetes-list-type"] = "map" if self.keys else "set"
        if self.keys:
            written["x-kubernetes-list-map-keys"] = list(self.keys)
        return written

    def _refuse_twins(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        identities = [tuple(getattr(item, key) for key in self.keys) if self.keys else item for item in items]
        for position, identity in enumerate(identities):
            if identity in identities[:position]:
                name = " ".join(map(str, identity)) if self.keys else identity
                raise PydanticCustomError(
                    DUPLICATE_ERROR, "{message}", {"message": f'has "{name}" twice: keep one of them'}
                )
        return items


class Block(BaseModel):
    """A mapping of the manifest: camelCase outside, snake_case inside, immutable, and no unknown fields.

    A block whose fields are all optional is never itself optional (its default is the empty block), so that "absent"
    and "empty" cannot mean two things.
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
    def _keep_the_rules(self) -> Self:
        broken = [rule.message for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError(RULE_ERROR, "{messages}", {"messages": "; ".join(broken)})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The block's schema with its rules, and with the defaults that are blocks themselves."""
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
    """A mapping of the status: like a block, but the program that reports may change it; what it sets is checked."""

    model_config = ConfigDict(frozen=False, validate_assignment=True)


def alias_of(field: FieldInfo) -> str:
    """The field's name in a manifest."""
    if field.alias is None:
        raise TypeError("every field of a block has an alias")
    return field.alias


def fields_of(block: type[Block]) -> dict[str, FieldInfo]:
    """The block's fields, keyed by their names in a manifest."""
    return {alias_of(field): field for field in block.model_fields.values()}


def block_of(annotation: object) -> type[Block] | None:
    """The block inside an annotation (`X`, `X | None`, `tuple[X, ...]`), or None when there is none."""
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
