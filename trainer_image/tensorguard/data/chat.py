"""One conversation as one text, with the character ranges of the assistant's turns.

A chat template is a program that belongs to the model, so the text that it puts around a turn is known only by running
it. A turn is located by running the template twice: on the conversation up to the turn, with the generation prompt (the
input of the model when it answers), and on the conversation up to and including the turn. The text that the second run
adds is what the model must learn, its end token included. A template may rewrite earlier turns when later ones follow
(Qwen 3 drops their reasoning). A turn whose rendering is not a prefix of the whole text carries no loss. All of this
depends on one record only.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorguard.data.errors import DataError
from tensorguard.data.keys import canonical
from tensorguard.data.tokenise import is_fast

Render = Callable[[Sequence[Any], Any, bool], str]  # messages, tools, add generation prompt -> text

RENDERED_CHARACTERS, VALUE_CHARACTERS = 1_000_000_000, 3_000
"""How much is rendered to locate the turns of one conversation: enough for those of 400 messages, in a few seconds. To
render a value, such as the role of a message, takes about as long as to copy 3,000 characters."""
LEVEL_CHARACTERS = 16
"""What a value costs more for each level at which it is nested. Templates that indent write 4 characters for each, and
hold them in several copies: 300,000 numbers in 250 lists would become 300 million characters."""
GREETING = ({"role": "user", "content": "Good morning."}, {"role": "assistant", "content": "Good morning to you."})


def renderer(tokenizer: Any, template: str | None) -> Render:
    """A function that renders conversations with `template`, or with the tokenizer's own template if it is None.

    Raises DataError if there is no template, if it cannot render a public example, or if the assistant's turns cannot
    be located in the rendered text.
    """
    if template is None and not getattr(tokenizer, "chat_template", None):
        raise DataError(
            "spec.model.chatTemplate: the tokenizer has no chat template: write one, or use prompt and completion"
        )
    if not is_fast(tokenizer):
        raise DataError(
            "spec.dataset.columns.messages: messages need a fast tokenizer, and this model has none: use prompt and "
            "completion, or another model"
        )

    def render(messages: Sequence[Any], tools: Any, generation_prompt: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            list(messages), tools=tools, chat_template=template, add_generation_prompt=generation_prompt, tokenize=False
        )
        return text

    try:
        whole = render(GREETING, None, False)
        spans = assistant_turns(GREETING, None, render, whole, len(whole))
    except Exception as error:
        raise DataError(
            f"spec.model.chatTemplate: it cannot render a greeting and its answer ({error}): correct the template"
        ) from None
    if not spans:
        raise DataError(
            "spec.model.chatTemplate: the assistant's turns cannot be located, because the rendering of a conversation "
            "does not start with the rendering of its first turns: use another template"
        )
    return render


def assistant_turns(messages: Sequence[Any], tools: Any, render: Render, whole: str, end: int) -> list[tuple[int, int]]:
    """The character ranges [start, end) in `whole` of the assistant's turns that can be located.

    Rendering starts again for each turn, so the time grows with the square of their number. So turns that start at or
    after `end` are not located, and none after RENDERED_CHARACTERS.

    Args:
        messages: the conversation.
        tools: its tools, or None.
        render: the result of `renderer`.
        whole: the rendering of the whole conversation, without a generation prompt.
        end: how many characters of `whole` a model will read.

    Raises whatever the template raises for this conversation.
    """
    spans = []
    costs = list(itertools.accumulate(map(rendering_cost, messages), initial=rendering_cost(tools)))
    cost = 0
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        cost += 2 * costs[i + 1]
        if cost > RENDERED_CHARACTERS:
            break
        before = render(messages[:i], tools, True)
        cost += 2 * len(before)
        if len(before) >= end and before[:end] == whole[:end]:
            break
        if not whole.startswith(before):
            continue
        after = render(messages[: i + 1], tools, False) if i + 1 < len(messages) else whole
        if after.startswith(before) and whole.startswith(after):
            spans.append((len(before), len(after)))
    return spans


def rendering_cost(value: Any, level: int = 0) -> int:
    """How long it takes to render a value (a message, all messages or tools), as a number of characters to copy.

    `level` is the number of lists and objects around it.
    """
    cost = VALUE_CHARACTERS + LEVEL_CHARACTERS * level
    if isinstance(value, Mapping):
        return cost + sum(rendering_cost(each, level + 1) for each in value.values())
    if isinstance(value, list | tuple):
        return cost + sum(rendering_cost(each, level + 1) for each in value)
    return cost + (len(value) if isinstance(value, str) else 0)


def conversation(value: Any) -> list[Any]:
    """A record's messages (or tools) as a list of dicts, from a list or its JSON text, without keys that hold null.

    Arrow gives every message all keys that any message has, fills them with null, orders them by all records, and makes
    numbers floats where one record has a fraction. So what is not JSON text is made canonical: keys are sorted, and
    whole numbers are integers. Raises ValueError or TypeError for any other value.
    """
    messages = _without_nulls(json.loads(value)) if isinstance(value, str | bytes) else canonical(value)
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise ValueError("not a list of objects")
    return messages


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
