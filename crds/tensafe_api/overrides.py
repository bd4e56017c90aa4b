"""Changes to a manifest from the command line: `--set spec.training.steps=20`.

In come the mapping of a manifest and the changes; out goes the changed mapping, with a problem for each change that
could not be made. `manifest` validates the result like any other.

The type of the field decides how its value is read, so that nobody has to quote twice: a decimal-string field that is
given `8` becomes "8", a list is written `[q_proj, v_proj]`, and `null` takes the field away.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from tensafe_api import yaml_io
from tensafe_api.problems import Problem, unknown_field
from tensafe_api.resources.base import Block, fields_of
from tensafe_api.resources.job import TenSafeTrainingJob

_INSTEAD = {"spec.training.steps": "epochs", "spec.training.epochs": "steps"}
"""Fields of which a manifest has exactly one: setting the one takes the other away."""


def apply_overrides(data: dict[str, Any], changes: Sequence[str]) -> list[Problem]:
    """Makes the changes in `data`, in order, and returns a problem for each that could not be made."""
    problems = []
    for change in changes:
        path, sign, value = change.partition("=")
        trouble = _set(data, path, value) if sign else "write it as a path and a value: spec.training.steps=20"
        if trouble:
            problems.append(Problem(f"--set {path}", trouble))
    return problems


def _set(data: dict[str, Any], path: str, value: str) -> str | None:
    """Sets one field; returns what is wrong with the path or the value, if anything."""
    names = path.split(".")
    if names[0] not in ("metadata", "spec"):
        return "only fields of metadata and spec can be set: write it as spec.training.steps=20"
    block: type[Block] = TenSafeTrainingJob
    here = data
    for depth, name in enumerate(names):
        field = fields_of(block).get(name)
        if field is None:
            return unknown_field(block, name, ".".join(names[:depth]))
        kind, rest = _bare(field.annotation), names[depth + 1 :]
        if not rest:
            return _place(here, name, kind, value, _INSTEAD.get(path))
        if not _is_block(kind) and get_origin(kind) is not dict:
            return f"{name} has no fields: set it whole, as {'.'.join(names[: depth + 1])}=..."
        inside = here.setdefault(name, {})
        if not isinstance(inside, dict):
            return f"{'.'.join(names[: depth + 1])} is not a mapping in the manifest: set it whole"
        if get_origin(kind) is dict:
            return _place(inside, ".".join(rest), str, value, None)
        block, here = kind, inside
    return None


def _place(here: dict[str, Any], name: str, kind: Any, value: str, instead: str | None) -> str | None:
    if value == "null":
        here.pop(name, None)
        return None
    try:
        here[name] = _read(kind, value)
    except yaml_io.RepeatedKeyError as repeated:
        return f'"{repeated}" stands there twice: keep one of them'
    except yaml.YAMLError:
        return f"{value} cannot be read: write a list as [a, b] and a mapping as {{name: value}}"
    if instead:
        here.pop(instead, None)
    return None


def _read(kind: Any, text: str) -> Any:
    """The value that a field of this type takes from the command line."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    if _is_string(kind) and not quoted:
        return text
    return _shape(kind, yaml_io.read_value(text))


def _shape(kind: Any, tree: Any) -> Any:
    """A tree of strings, lists and mappings, with its scalars as the type wants them; what does not fit stays."""
    kind = _bare(kind)
    if isinstance(tree, str):
        return tree if _is_string(kind) or get_origin(kind) is tuple or _is_block(kind) else yaml_io.read_scalar(tree)
    if isinstance(tree, list) and get_origin(kind) is tuple:
        return [_shape(get_args(kind)[0], item) for item in tree]
    if isinstance(tree, dict) and _is_block(kind):
        fields = fields_of(kind)
        return {name: _shape(fields[name].annotation, item) if name in fields else item for name, item in tree.items()}
    return tree


def _bare(annotation: Any) -> Any:
    """The type inside `Annotated` and `| None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _bare(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return next(_bare(choice) for choice in get_args(annotation) if choice is not NoneType)
    return annotation


def _is_block(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Block)


def _is_string(kind: Any) -> bool:
    return kind is str or get_origin(kind) is Literal
