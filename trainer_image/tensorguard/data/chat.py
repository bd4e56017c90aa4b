"""One conversation as one text, and where in it the assistant speaks.

A chat template is a program that belongs to the model; what it writes around a turn is known only by running it. So a
turn's place is found by running it twice: on the conversation up to the turn, with the generation prompt (what the
model is given when it is its turn), and on the conversation up to and including the turn. What the second adds to the
first is what the model must learn to say, its end token included. A template may rewrite earlier turns when later
ones come (Qwen 3 drops their reasoning): a turn whose rendering alone is no prefix of the whole carries no loss. All
of it depends on one record only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tensorguard.data.errors import DataError

Render = Callable[[Sequence[Any], Any, bool], str]  # messages, tools, add generation prompt -> text

GREETING = ({"role": "user", "content": "Good morning."}, {"role": "assistant", "content": "Good morning to you."})


def renderer(tokenizer: Any, template: str | None) -> Render:
    """A function that renders conversations by `template`, or by the tokenizer's own where it is None.

    Raises DataError where there is no template, where it cannot render a public example, or where assistant turns
    cannot be found in what it renders.
    """
    if template is None and not getattr(tokenizer, "chat_template", None):
        raise DataError(
            "spec.model.chatTemplate: the tokenizer has no chat template; give one, or use prompt and completion"
        )
    if not tokenizer.is_fast:
        raise DataError(
            "spec.dataset.columns.messages: this model's tokenizer has no fast version, which messages need"
        )

    def render(messages: Sequence[Any], tools: Any, generation_prompt: bool) -> str:
        return tokenizer.apply_chat_template(
            list(messages), tools=tools, chat_template=template, add_generation_prompt=generation_prompt, tokenize=False
        )

    try:
        _, spans = assistant_turns(GREETING, None, render)
    except Exception as error:
        raise DataError(f"spec.model.chatTemplate: it cannot render a greeting and its answer ({error})") from None
    if not spans:
        raise DataError(
            "spec.model.chatTemplate: the assistant's turns cannot be found in what it renders, since the rendering of "
            "a conversation does not begin with that of the conversation's beginning; use another template"
        )
    return render


def assistant_turns(messages: Sequence[Any], tools: Any, render: Render) -> tuple[str, list[tuple[int, int]]]:
    """A conversation's whole text, and the character ranges [start, end) of the assistant's turns that can be found.

    Raises whatever the template raises for this conversation.
    """
    whole = render(messages, tools, False)
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(messages[:i], tools, True)
        after = render(messages[: i + 1], tools, False) if i + 1 < len(messages) else whole
        if after.startswith(before) and whole.startswith(after):
            spans.append((len(before), len(after)))
    return whole, spans


def conversation(value: Any) -> list[Any]:
    """A record's messages (or tools) as a list of dicts, from that or its JSON text, without the keys that hold null.

    (Arrow gives every message all keys that any message has.) Raises ValueError or TypeError for anything else.
    """
    parsed = json.loads(value) if isinstance(value, str | bytes) else value
    if not isinstance(parsed, list) or not parsed or not all(isinstance(item, dict) for item in parsed):
        raise ValueError("not a list of objects")
    return _without_nulls(parsed)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
