"""YAML as the API server reads it.

In comes the text of a manifest, or a mapping; out goes a mapping with the troubles of its text, or text that every
reader reads alike. `manifest` and `crd` act next.

PyYAML and the YAML reader of Kubernetes disagree: `2e-4` is a string for the one and a float for the other,
`2026-01-31` a date for the one and a string for the other. What is read here is read as Kubernetes
reads it, so that a manifest which runs on a laptop is not refused by a cluster; and what is written here quotes every
string that any reader could take for something else. A key that is written twice would silently win or lose: it is
reported.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

_INTEGER = re.compile(r"^[-+]?(0|[1-9][0-9_]*|0[0-7_]+|0x[0-9a-fA-F]+|0b[01]+)$")
_FLOAT = re.compile(
    r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+|[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)
_NOT_IN_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_SAFE_START = re.compile(r"[A-Za-z/^]")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def read_documents(text: str) -> tuple[list[Any], list[str]]:
    """The documents of a YAML text that hold something, and one sentence for each key that is no proper key.

    Raises:
        yaml.YAMLError: the text is no YAML.
    """
    loader = _Loader(text)
    documents: list[Any] = []
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]
            documents.append(loader.get_data())
    finally:
        loader.dispose()
    return [document for document in documents if document is not None], loader.key_troubles


def read_value(text: str) -> Any:
    """One value written in YAML, with every scalar left a string.

    Raises:
        RepeatedKeyError: a mapping has one key twice.
        yaml.YAMLError: the text is no YAML.
    """
    return yaml.load(text, Loader=_StringLoader)


def read_scalar(text: str) -> Any:
    """What a bare scalar is for Kubernetes: a number, a truth value, nothing, or a string; collections stay text.

    Raises:
        yaml.YAMLError: the text is no YAML.
    """
    value = yaml.load(text, Loader=_Loader)
    return text if isinstance(value, dict | list) else value


def write(value: Any) -> str:
    """The value as YAML, strings quoted wherever any YAML reader could take them for something else."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def write_json(value: Any) -> str:
    """The value as JSON that YAML readers take as well: what YAML calls unprintable, or a line break, is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


class RepeatedKeyError(yaml.YAMLError):
    """A mapping has one key twice; its text is the key."""


class _Loader(yaml.SafeLoader):
    """Reads numbers as Kubernetes does, leaves dates alone, and notes keys that are written twice or are no strings."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.key_troubles: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self._look_at_keys(node)
        return super().construct_mapping(node, deep)

    def _look_at_keys(self, node: yaml.MappingNode) -> None:
        """Note the trouble with each key, also in what is merged (<<): PyYAML never makes a mapping of that."""
        written: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            merged = key_node.tag == "tag:yaml.org,2002:merge"
            if merged:
                parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for part in parts:
                    if isinstance(part, yaml.MappingNode):
                        self._look_at_keys(part)
            elif not isinstance(key_node, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key must be a string", key_node.start_mark)
            key = "<<" if merged else self.construct_object(key_node)
            if not isinstance(key, str):
                self.key_troubles.append(f"line {line}: the key {key_node.value} is not a string: quote it")
            elif key in written:
                self.key_troubles.append(
                    f'line {line}: "{key}" stands in line {written[key]} already: keep one of them'
                )
            written.setdefault(key, line)


class _StringLoader(yaml.BaseLoader):
    """Leaves scalars strings, and refuses a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                raise RepeatedKeyError(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes without anchors, and quotes strings that are not plainly words."""

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
_REPLACED = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
