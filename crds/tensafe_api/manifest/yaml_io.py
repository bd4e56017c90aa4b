"""Reads and writes YAML in the way of the API server.

Reading: a text comes in, a mapping and the problems of its keys go out. Writing: a mapping comes in, and text goes out
that every YAML reader reads in the same way.

PyYAML and the YAML reader of Kubernetes differ. PyYAML reads `2e-4` as a string and `2026-01-31` as a date; Kubernetes
reads a float and a string. This module reads in the way of Kubernetes, so that a cluster does not refuse a manifest
that runs on a laptop. It writes quotes around every string that some reader could read as another type. A key that
occurs twice is reported; otherwise one of its values would be lost without a message.

A manifest may come from a stranger. Aliases of aliases turn a few hundred bytes into gigabytes. So a text is refused
before its values are constructed if it is too large with its aliases written out, or nested too deeply.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

_INTEGER = re.compile(r"^[-+]?(0|[1-9][0-9]*|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|0[bB][01]+)$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_FRACTION = re.compile(r"^\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?$")
_NOT_FINITE = re.compile(r"^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$")
_NOT_IN_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_SAFE_START = re.compile(r"[A-Za-z/^]")
MAX_LEVELS = 100
"""Maximum number of levels of a text. The schema of a job has about ten."""
MAX_SIZE = 4 << 20
"""Maximum size of a text with its aliases written out: its characters, and `_NODE_SIZE` for each scalar, list and
mapping. The API server takes about 1.5 MiB."""
_NODE_SIZE = 32
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_LONGEST_NUMBER = 1000
"""Characters of a number. Python converts no decimal number of more than 4,300 digits to an integer."""
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def read_documents(text: str) -> tuple[list[Any], list[str]]:
    """The documents of a YAML text that are not empty, and one sentence for each invalid key.

    Raises:
        yaml.YAMLError: the text is not YAML, or is too large or nested too deeply.
    """
    documents: list[Any] = []
    with _errors_of_yaml():
        loader = _Loader(text)
        try:
            while loader.check_data():  # type: ignore[no-untyped-call]
                documents.append(loader.get_data())
        finally:
            loader.dispose()
    return [document for document in documents if document is not None], loader.key_problems


def read_value(text: str) -> Any:
    """One value in YAML, with every scalar as a string.

    Raises:
        RepeatedKeyError: a mapping has a key twice.
        yaml.YAMLError: the text is not YAML, or is too large or nested too deeply.
    """
    with _errors_of_yaml():
        return yaml.load(text, Loader=_StringLoader)


def read_scalar(text: str) -> Any:
    """A scalar without quotes as Kubernetes reads it: a number, a boolean, None or a string. Collections stay text.

    Raises:
        yaml.YAMLError: the text is not YAML.
    """
    with _errors_of_yaml():
        value = yaml.load(text, Loader=_Loader)
    return text if isinstance(value, dict | list) else value


class WrittenScalars:
    """The scalars without quotes of a text as they stand there: `8.10` is read as 8.1, and `no` as false.

    `read_documents` has read the text before. It is read again, at the first question.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @functools.cached_property
    def _loader(self) -> _Loader:
        return _Loader(self._text)

    @functools.cached_property
    def _root(self) -> yaml.Node | None:
        while self._loader.check_node():
            node = self._loader.get_node()
            if isinstance(node, yaml.MappingNode):
                return node
        return None

    def find(self, location: Sequence[str | int], value: object) -> str | None:
        """The scalar at a location of the first document that is a mapping, if it is read as `value`.

        None if there is none: a change from the command line may have replaced it.
        """
        node = self._root
        for step in location:
            node = self._inside(node, step)
        if not isinstance(node, yaml.ScalarNode) or node.style is not None:
            return None
        read = self._loader.construct_object(node)
        return str(node.value) if type(read) is type(value) and read == value else None

    def _inside(self, node: yaml.Node | None, step: str | int) -> yaml.Node | None:
        if isinstance(node, yaml.MappingNode):
            self._loader.flatten_mapping(node)  # with what << brings
            return next((value for key, value in reversed(node.value) if key.value == step), None)
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            return next(iter(node.value[step : step + 1]), None)
        return None


def write(value: Any) -> str:
    """The value as YAML, with quotes around every string that some YAML reader could read as another type."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def write_json(value: Any) -> str:
    """The value as JSON that is also YAML: characters that YAML refuses or takes for line breaks are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


class RepeatedKeyError(yaml.YAMLError):
    """A mapping has a key twice. `str()` is the key."""


@contextmanager
def _errors_of_yaml() -> Iterator[None]:
    """Turn the errors that PyYAML does not expect into its own, such as that of the character "\\UFFFFFFFF"."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError("it has a character, a number or a tag that cannot be read") from error


class _Bounded(yaml.composer.Composer):
    """Refuses a text that is too large with its aliases written out, or is nested too deeply."""

    def __init__(self, text: str) -> None:
        self._level = self._size = 0
        self._sizes: dict[int, int] = {}
        super().__init__(text)  # type: ignore[call-arg]  # a loader

    def compose_document(self) -> yaml.Node | None:
        self._sizes.clear()  # the nodes of the document before do not exist any more
        node: yaml.Node | None = super().compose_document()
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self._size  # type: ignore[attr-defined]
        self._level += 1
        if self._level > MAX_LEVELS:
            raise ComposerError(
                None, None, f"it is nested too deeply, by more than {MAX_LEVELS} levels", event.start_mark
            )
        node = super().compose_node(parent, index)
        self._level -= 1
        written = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        own = _NODE_SIZE + written
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and id(node) not in self._sizes:
            raise ComposerError(None, None, "it refers to itself", event.start_mark)
        self._size += self._sizes[id(node)] if is_alias else own
        if self._size > MAX_SIZE:
            message = f"it is larger than {MAX_SIZE >> 20} MiB, with what its aliases repeat"
            raise ComposerError(None, None, message, event.start_mark)
        self._sizes[id(node)] = self._size - before
        return node


class _Loader(_Bounded, yaml.SafeLoader):
    """Reads numbers as Kubernetes does and dates as strings, and records keys that occur twice or are not strings."""

    bool_values: ClassVar = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.key_problems: list[str] = []

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        if kind is yaml.ScalarNode and implicit[0] and (number := _kind_of_number(value)):
            return f"{_TAG}{number}"
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = _without_underscores(self.construct_scalar(node))
        return int(text, 8 if re.match("[-+]?0[0-9]", text) else 0)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        kind, length = node.tag.rpartition(":")[2], len(node.value)
        try:
            if kind not in ("int", "float") or length <= _LONGEST_NUMBER:
                return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # such as !!bool text
            raise ConstructorError(None, None, _no_value(kind, length), node.start_mark) from error
        raise ConstructorError(None, None, _no_value(kind, length), node.start_mark)

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if event.tag == "!":  # `! 5` is a text
            node.tag = f"{_TAG}str"
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        self._check_keys(node)  # before << adds keys of others
        return node

    def _check_keys(self, node: yaml.MappingNode) -> None:
        """Record the problem of each key. Kubernetes lets << replace the keys before it, and most other readers do not:
        so a reader could see another ε than the cluster.
        """
        written: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            merged = key_node.tag == _MERGE and key_node.value == "<<"
            if not merged and not isinstance(key_node, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key must be a string", key_node.start_mark)
            if key_node.tag == _MERGE and not merged:
                raise ConstructorError(None, None, "only << merges: remove the tag !!merge", key_node.start_mark)
            key = "<<" if merged else self.construct_object(key_node)
            if not isinstance(key, str):
                self.key_problems.append(f"line {line}: the key {key_node.value} is not a string: quote it")
            elif key in written:
                self.key_problems.append(
                    f'line {line}: the key "{key}" is already in line {written[key]}: keep one of them'
                )
            if merged:
                for replaced in sorted(written.keys() & _merged_keys(value_node)):
                    self.key_problems.append(
                        f'line {line}: << brings the key "{replaced}", which is already in line {written[replaced]}: '
                        "write << first"
                    )
            written.setdefault(key, line)


def _kind_of_number(text: str) -> str | None:
    """Whether Kubernetes reads a text without quotes as an `int` or a `float`; None: as neither, or not finite."""
    if text[:1] not in "+-.0123456789":
        return None
    if text.startswith(".") and not _FRACTION.match(text):
        return None
    plain = _without_underscores(text)
    if _INTEGER.match(plain):
        return "int"
    return "float" if _FLOAT.match(plain) and math.isfinite(float(plain)) else None


def _without_underscores(text: str) -> str:
    return text.replace("_", "")


def _merged_keys(node: yaml.Node) -> set[str]:
    """The keys that << brings from a mapping, or from a list of mappings."""
    if isinstance(node, yaml.SequenceNode):
        return {key for each in node.value for key in _merged_keys(each)}
    found: set[str] = set()
    for key_node, value_node in node.value if isinstance(node, yaml.MappingNode) else ():
        found |= _merged_keys(value_node) if key_node.tag == _MERGE else {str(key_node.value)}
    return found


def _no_value(kind: str, length: int) -> str:
    return f"this value of {length:,} characters cannot be read as the type {kind}: correct it, or quote a text"


class _StringLoader(_Bounded, yaml.BaseLoader):
    """Reads all scalars as strings, and refuses a key that occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                raise RepeatedKeyError(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes without anchors, and quotes strings that are not unambiguous."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text and text.strip() and not _NOT_IN_YAML.search(text):
        style: str | None = "|"
    else:
        safe = _SAFE_START.match(text) and text.lower() not in _WORDS and not ("'" in text or _NOT_IN_YAML.search(text))
        style = None if safe else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_string)
_REPLACED = frozenset(f"{_TAG}{kind}" for kind in ("int", "float", "timestamp", "value"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile("^[yYnN]$"), list("yYnN"))
_Loader.add_implicit_resolver(f"{_TAG}float", _NOT_FINITE, list("-+."))
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
