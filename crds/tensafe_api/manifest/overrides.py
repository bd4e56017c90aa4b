"""Changes to a manifest from the command line: `--set spec.training.steps=20`.

The mapping of a manifest and the changes come in. The changed mapping goes out, with a problem for each change that
cannot be applied. `manifest` validates the result like any other manifest.

The type of the field determines how its value is read, so that users need no second pair of quotes. In the field of a
decimal string `8` becomes "8", a list is written `[q_proj, v_proj]`, and `null` removes the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from tensafe_api.manifest import yaml_io
from tensafe_api.manifest.validation import Problem, unknown_field
from tensafe_api.resources.base import Block, fields_of
from tensafe_api.resources.job import TenSafeTrainingJob

_INSTEAD = {"spec.training.steps": "epochs", "spec.training.epochs": "steps"}
"""Fields of which a manifest has at most one: setting one removes the other."""


def apply_overrides(data: dict[str, Any], changes: Sequence[str]) -> list[Problem]:
    """Applies the changes to `data`, in order, and returns a problem for each one that cannot be applied."""
    problems = []
    for change in changes:
        path, sign, value = change.partition("=")
        problem = _set(data, path, value) if sign else "has no value: write it as spec.training.steps=20"
        if problem:
            problems.append(Problem(f"--set {path}", problem))
    return problems


def _set(data: dict[str, Any], path: str, value: str) -> str | None:
    """Sets one field. Returns the problem of the path or the value; None if there is none."""
    names = path.split(".")
    if names[0] not in ("metadata", "spec"):
        return "is not a field of metadata or spec: write a path such as spec.training.steps=20"
    block: type[Block] = TenSafeTrainingJob
    target = data
    for depth, name in enumerate(names):
        field = fields_of(block).get(name)
        if field is None:
            return unknown_field(block, name, ".".join(names[:depth]))
        kind, rest = _bare(field.annotation), names[depth + 1 :]
        if not rest:
            return _assign(target, name, kind, value, _INSTEAD.get(path))
        if not _is_block(kind) and get_origin(kind) is not dict:
            return f"{name} has no fields: set it as a whole, with {'.'.join(names[: depth + 1])}=..."
        inside = target.setdefault(name, {})
        if not isinstance(inside, dict):
            return f"{'.'.join(names[: depth + 1])} is not a mapping in the manifest: set it as a whole"
        if get_origin(kind) is dict:
            return _assign(inside, ".".join(rest), str, value, None)
        block, target = kind, inside
    return None


def _assign(target: dict[str, Any], name: str, kind: Any, value: str, instead: str | None) -> str | None:
    if value == "null":
        target.pop(name, None)
        return None
    try:
        target[name] = _read(kind, value)
    except yaml_io.RepeatedKeyError as repeated:
        return f'has the key "{repeated}" twice: keep one of them'
    except yaml.YAMLError:
        return f"{value} is not YAML: write a list as [a, b] and a mapping as {{name: value}}"
    if instead:
        target.pop(instead, None)
    return None


def _read(kind: Any, text: str) -> Any:
    """The value of a field of this type, from its text on the command line."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    if _is_string(kind) and not quoted:
        return text
    return _convert(kind, yaml_io.read_value(text))


def _convert(kind: Any, tree: Any) -> Any:
    """A tree of strings, lists and mappings, with its scalars converted to the type.

    A part that does not fit the type stays as it is; validation then reports it.
    """
    kind = _bare(kind)
    if isinstance(tree, str):
        value = yaml_io.read_scalar(tree) if kind in (int, bool) else tree
        return value if value is None or type(value) is kind else tree
    if isinstance(tree, list) and get_origin(kind) is tuple:
        return [_convert(get_args(kind)[0], item) for item in tree]
    if isinstance(tree, dict) and _is_block(kind):
        fields = fields_of(kind)
        return {
            name: _convert(fields[name].annotation, item) if name in fields else item for name, item in tree.items()
        }
    return tree


def _bare(annotation: Any) -> Any:
    """The type without `Annotated` and `| None`."""
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
