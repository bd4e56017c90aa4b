"""What a conversation is: one rule from a value, as a data source has it, to messages as chat templates read them.

In comes the value of one record: a list of objects, as Python or Arrow gives it, or its JSON text. Out come messages
and tools that JSON can hold. They are the same for one record in every format, also in the order of their fields, since
Arrow orders fields by all records: the fields that templates write come in their usual order, and others by name.

Roles and the names of fields are those of OpenAI, whatever is in use elsewhere (ShareGPT, Gemini, Anthropic, Llama).
Nothing is left out silently: a message of which a part is not text makes the record unusable.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tensorguard.data.values import python_value

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "model", "gpt", "chatgpt", "bot", "ai"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython"), "tool"),
}
"""The roles in use, in lower case. `developer` is OpenAI's new name of `system`; most templates refuse it or leave its
message out."""
ROLE_FIELDS = ("role", "from", "speaker", "author")
TEXT_FIELDS = ("content", "value", "text", "parts")
LIST_FIELDS = ("messages", "conversations")
CALL_FIELDS = ("tool_calls", "function_call")
TEXT_PARTS = ("text", "input_text", "output_text")
_FIRST = (
    *("role", "content", "id", "type", "function", "name", "description"),
    *("parameters", "arguments", "properties", "enum", "items", "required"),
)
_RANKS = {name: rank for rank, name in enumerate(_FIRST)}
"""The usual order of the fields of messages, tool calls, tools and JSON schemas. Templates write tools as JSON."""


class NotAConversation(ValueError):
    """A value that is no conversation, or has a part that is not text. Its message has no content of the value."""


def messages_of(value: Any) -> list[dict[str, Any]]:
    """The messages of a record; each has a role and a text (`content`), or calls of tools.

    A role in use (`ROLES`) is system, user, assistant or tool; another one stays as it is written. Parts of text are
    joined without a separator, as chat templates and the libraries of OpenAI and Google do. Other fields stay as they
    are. Fields that hold null are absent, and whole numbers are integers.

    Raises NotAConversation for any other value, also for a list without a message.
    """
    found = _parsed(value)
    if isinstance(found, dict) and len(found) == 1 and next(iter(found)) in LIST_FIELDS:
        [found] = found.values()
    return [_message(each) for each in _objects(found)]


def tools_of(value: Any) -> list[dict[str, Any]] | None:
    """The tools that a conversation may call; None for null, blank text and an empty list.

    Raises NotAConversation for anything else than a list of objects.
    """
    if isinstance(value, str | bytes) and not value.strip():
        return None
    found = _parsed(value)
    return None if found is None or found == [] else _objects(found)


def call_names(message: Mapping[str, Any]) -> list[str]:
    """The names of the functions that a message calls."""
    calls = message.get("tool_calls")
    every = [*(calls if isinstance(calls, list) else ()), message.get("function_call")]
    return [name for name in map(name_of, every) if name]


def name_of(tool: Any) -> str:
    """The name of a tool or of a call, with or without the object `function` around it; empty if it has none."""
    inner = tool.get("function", tool) if isinstance(tool, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else inner
    return name if isinstance(name, str) else ""


def _parsed(value: Any) -> Any:
    """The canonical form of a value, or of that of JSON text."""
    try:
        return _canonical(python_value(json.loads(value) if isinstance(value, str | bytes) else value))
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise NotAConversation("not JSON") from None


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise NotAConversation("not a list of objects")
    return value


def _message(given: dict[str, Any]) -> dict[str, Any]:
    """A message with a role, and a text where it has one."""
    role_field = next((name for name in ROLE_FIELDS if name in given), "")
    role = given.get(role_field)
    if not isinstance(role, str) or not role.strip():
        raise NotAConversation("a message without a role")
    message: dict[str, Any] = {"role": ROLES.get(role.strip().lower(), role)}
    fields = [given[name] for name in TEXT_FIELDS if name in given]
    texts = {_text(each) for each in fields} - {""}
    if len(texts) > 1:
        raise NotAConversation("a message with two texts")
    if fields:
        message["content"] = texts.pop() if texts else ""
    elif not any(given.get(name) for name in CALL_FIELDS):
        raise NotAConversation("a message without a text")
    others = {name: each for name, each in given.items() if name not in (role_field, *TEXT_FIELDS)}
    return {**message, **others}


def _text(content: Any) -> str:
    """The text of a message's content: a text, or a list of parts that are text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NotAConversation("a content that is not text")
    return "".join(map(_text_of_part, content))


def _text_of_part(part: Any) -> str:
    if isinstance(part, dict):
        is_text = part["type"] in TEXT_PARTS if "type" in part else list(part) == ["text"]
        part = part.get("text") if is_text else None
    if not isinstance(part, str):
        raise NotAConversation("a part that is not text")
    return part


def _canonical(value: Any) -> Any:
    """A value of Python's types as JSON can hold it, the same whatever types other records have.

    Fields that hold null are absent, and the others are in their order. Whole numbers are integers. Times and UUIDs are
    text.
    """
    if isinstance(value, dict):
        fields = {str(name): each for name, each in value.items() if each is not None}
        names = sorted(fields, key=lambda name: (_RANKS.get(name, len(_RANKS)), name))
        return {name: _canonical(fields[name]) for name in names}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | uuid.UUID):
        return str(value)
    if value is not None and not isinstance(value, str | int):
        raise NotAConversation("a value that JSON cannot hold")
    return value
