"""YAML is read as Kubernetes reads it, and written so that all readers read the same."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tensafe_api.manifest import yaml_io


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 0.0002),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("8", 8),
        ("+5", 5),
        ("0x10", 16),
        ("010", 8),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("12:30:45", "12:30:45"),
        ("08", 8.0),
        ("1_000", 1000),
        ("0X1_4", 20),
        ("1_0.5", 10.5),
        (".5_0", 0.5),
        ("._5", "._5"),
        ("1e400", "1e400"),
        ("-.", "-."),
        ('"8"', "8"),
        ("true", True),
        ("off", False),
        ("~", None),
    ],
)
def test_scalars_are_read_as_kubernetes_reads_them(text: str, value: object) -> None:
    assert yaml_io.read_scalar(text) == value
    assert type(yaml_io.read_scalar(text)) is type(value)


def test_duplicate_keys_and_keys_that_are_not_strings_are_reported() -> None:
    documents, problems = yaml_io.read_documents("a: {b: 1, b: 2}\na: 2\n8: x\non: y\n")
    assert documents[0]["a"] == 2
    assert sorted(problems) == [
        'line 1: the key "b" is already in line 1: keep one of them',
        'line 2: the key "a" is already in line 1: keep one of them',
        "line 3: the key 8 is not a string: quote it",
        "line 4: the key on is not a string: quote it",
    ]


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", '{a: 1, "a": 1}', "[{b: {a: 1, a: 2}}]", "a: 1\na: 2"])
def test_value_with_a_duplicate_key_is_refused(text: str) -> None:
    with pytest.raises(yaml_io.RepeatedKeyError, match=r"^a$"):
        yaml_io.read_value(text)
    assert yaml_io.read_value("[{a: 1}, {a: 2, b: {a: 3}}]") == [{"a": "1"}, {"a": "2", "b": {"a": "3"}}]


def test_scalar_that_looks_like_a_collection_stays_text() -> None:
    assert yaml_io.read_scalar("{a: 1, a: 2}") == "{a: 1, a: 2}"


def repeated(levels: int, each: int = 9) -> str:
    """A mapping whose last value has `each` to the power of `levels` entries, all of them aliases."""
    lines = [f"a0: &a0 [{'x, ' * each}]", *(f"a{n}: &a{n} [{f'*a{n - 1}, ' * each}]" for n in range(1, levels))]
    return "\n".join(lines) + "\n"


def merged(levels: int) -> str:
    lines = ["a0: &a0 {b: c}", *(f"a{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 9}]}}" for n in range(1, levels))]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("text", [repeated(10), merged(10), f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 100}]"])
def test_text_that_is_too_large_with_its_aliases_written_out_is_refused(text: str) -> None:
    for read in (yaml_io.read_documents, yaml_io.read_value, yaml_io.read_scalar):
        with pytest.raises(yaml.YAMLError, match="it is larger than 4 MiB, with what its aliases repeat"):
            read(text)


def test_ordinary_aliases_are_read() -> None:
    documents, problems = yaml_io.read_documents(repeated(4) + "---\n" + repeated(4) + "b: *a3\n")
    assert [len(document["a3"]) for document in documents] == [9, 9] and problems == []
    assert documents[1]["b"] == documents[1]["a3"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["[" * 20_000, "{a: " * 20_000, "- " * 20_000 + "a", "[" * 101 + "]" * 101])
def test_text_that_is_nested_too_deeply_is_refused(text: str) -> None:
    for read in (yaml_io.read_documents, yaml_io.read_value, yaml_io.read_scalar):
        with pytest.raises(yaml.YAMLError, match="it is nested too deeply, by more than 100 levels"):
            read(text)
    assert len(yaml_io.read_documents("[" * 100 + "]" * 100)[0]) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9" * 200_000, "this value of 200,000 characters cannot be read as the type int"),
        ("0x" + "f" * 20_000, "this value of 20,002 characters cannot be read as the type int"),
        ("!!bool text", "this value of 4 characters cannot be read as the type bool"),
        ("!!int ''", "this value of 0 characters cannot be read as the type int"),
        ("!!timestamp text", "cannot be read as the type timestamp"),
        ('"\\UFFFFFFFF"', "it has a character, a number or a tag that cannot be read"),
        ("!!map text", "expected a mapping node, but found scalar"),
        ("&a [*a]", "it refers to itself"),
        ("{!!merge q: {b: 1}}", "only << merges"),
        ("&a {<<: *a}", "it refers to itself"),
    ],
    ids=lambda value: value[:20],
)
def test_value_that_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(yaml.YAMLError) as refused:
        yaml_io.read_documents(f"a: {text}\n")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("y", True),
        ("N", False),
        ("0o17", 15),
        ("017", 15),
        ("=", "="),
        ("yy", "yy"),
        ("! y", "y"),
        ("! 5", "5"),
        ("'n'", "n"),
    ],
)
def test_scalar_is_read_as_by_kubernetes(text: str, value: object) -> None:
    assert yaml_io.read_documents(f"a: {text}\n") == ([{"a": value}], [])


def test_mapping_that_merges_may_be_merged_itself() -> None:
    text = "a: &a {k: 1, x: 2}\nb: &b {<<: *a, k: 3}\nc: {<<: *b, x: 4}\n"
    documents, problems = yaml_io.read_documents(text)
    assert (documents[0]["c"], problems) == ({"k": 3, "x": 4}, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{e: "1", <<: {e: "20"}}', 'line 1: << brings the key "e", which is already in line 1: write << first'),
        ("{e: 1, <<: [{f: 1}, {<<: {e: 2}}]}", 'line 1: << brings the key "e", which is already in line 1'),
    ],
)
def test_key_before_a_merge_that_brings_it_is_refused(text: str, problem: str) -> None:
    """Kubernetes takes the merged value, and PyYAML the one before: a manifest would have two values of ε."""
    _, (found,) = yaml_io.read_documents(f"{text}\n")
    assert found.startswith(problem)
    assert yaml_io.read_documents("{<<: {e: 20}, e: 1}\n") == ([{"e": 1}], [])
    assert yaml_io.read_documents("{f: 1, <<: {e: 20}}\n") == ([{"f": 1, "e": 20}], [])


def test_self_reference_of_a_later_document_is_refused() -> None:
    for before in range(50):
        with pytest.raises(yaml.YAMLError, match="it refers to itself"):
            yaml_io.read_documents("x: 1\n---\n" * before + "a: &a {<<: *a, b: 1}\n")


def test_empty_documents_are_ignored() -> None:
    assert yaml_io.read_documents("---\na: 1\n---\n") == ([{"a": 1}], [])
    assert yaml_io.read_documents("# nothing\n") == ([], [])


def test_merged_mappings_are_read() -> None:
    documents, problems = yaml_io.read_documents("base: &base {a: 1, b: 1}\nmore: {<<: *base, b: 2}\n")
    assert documents[0]["more"] == {"a": 1, "b": 2}
    assert problems == []


@pytest.mark.parametrize(
    "text",
    [
        'privacy: {<<: {targetEpsilon: "8", targetEpsilon: "800"}}',
        'privacy:\n  <<: {targetEpsilon: "8"}\n  <<: {targetEpsilon: "800"}',
        'privacy: {<<: [{targetDelta: "1e-5"}, {targetEpsilon: "8", targetEpsilon: "800"}]}',
        'a: &a {b: "1", b: "2"}\nprivacy: {<<: *a}',
    ],
)
def test_duplicate_key_in_a_merged_mapping_is_reported(text: str) -> None:
    _, problems = yaml_io.read_documents(text)
    assert problems
    assert all(re.search(r"is already in line \d+: keep one of them", problem) for problem in problems)


@pytest.mark.parametrize("text", ["8", "2e-4", "0.05", "on", "No", "y", "null", "1_000", "0x1F", "12:30", "-", ""])
def test_strings_that_look_like_another_type_are_quoted(text: str) -> None:
    assert yaml_io.write({"key": text}) == f'key: "{text}"\n'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), json_values, min_size=1, max_size=4))
def test_both_yaml_readers_read_the_same(value: dict[str, Any]) -> None:
    text = yaml_io.write(value)
    assert yaml_io.read_documents(text) == ([value], [])
    assert yaml.safe_load(text) == value


@pytest.mark.slow
@given(st.dictionaries(st.text(), json_values, min_size=1, max_size=4))
def test_yaml_readers_read_the_same_json(value: dict[str, Any]) -> None:
    text = yaml_io.write_json(value)
    assert json.loads(text) == value
    assert yaml_io.read_documents(text) == ([value], [])
