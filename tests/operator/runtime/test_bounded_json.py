"""An object that is nested too deeply costs only its deep parts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies

from tensafe_operator.runtime.bounded_json import DEEPEST, TOO_DEEP, loads_bounded

VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
)


def nested(depth: int, *, lists: bool, inside: str = '"x"') -> str:
    return ("[" if lists else '{"a]}\\"": ') * depth + inside + ("]" if lists else "}") * depth


def depth_of(document: Any) -> int:
    """The number of containers around the innermost value."""
    level, depth = [document], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        level = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        depth += 1
    return depth


@given(VALUES)
def test_shallow_documents_are_read_as_they_are(value: Any) -> None:
    assert loads_bounded(json.dumps(value)) == value
    assert loads_bounded(json.dumps(value).encode()) == value


@pytest.mark.parametrize("lists", [True, False], ids=["lists", "mappings"])
@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, DEEPEST + 2, DEEPEST + 3, 900, 995, 10_000])
def test_deep_parts_are_replaced_and_the_rest_stays(depth: int, lists: bool) -> None:
    text = f'{{"before": [1, {{}}], "deep": {nested(depth, lists=lists)}, "after": "}}]"}}'
    found = loads_bounded(text)
    assert (found["before"], found["after"]) == ([1, {}], "}]")
    assert depth_of(found) == min(depth + 1, DEEPEST + 1)
    innermost = found["deep"]
    while not isinstance(innermost, str):
        innermost = next(iter(innermost.values())) if isinstance(innermost, dict) else innermost[0]
    assert innermost == ("x" if depth < DEEPEST + 1 else TOO_DEEP)


def test_several_deep_parts_in_one_document() -> None:
    deep = nested(3000, lists=True, inside="1, 2")
    found = loads_bounded(f'[{deep}, "kept", {deep}, {{"a": {deep}}}, 7]')
    assert (found[1], found[4]) == ("kept", 7)
    assert depth_of(found) == DEEPEST + 1


@pytest.mark.parametrize("text", ["", "{", "[" * 5000, "[" * 5000 + "]" * 4999, '{"a": 1}}', "[1, 2"])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads_bounded(text)
