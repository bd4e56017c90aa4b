"""One conversation as one text, with the character ranges of the assistant's turns.

A chat template is a program that belongs to the model, so the text that it puts around a turn is known only by running
it. A turn is located by running the template twice: on the conversation up to the turn, with the generation prompt (the
input of the model when it answers), and on the conversation up to and including the turn. The text that the second run
adds is what the model must learn, its end token included. A template may rewrite earlier turns when later ones follow
(Qwen 3 drops their reasoning). A turn whose rendering is not a prefix of the whole text carries no loss, nor does one
that the template cannot render as the last. All of this depends on one record only.

A template may also leave out a message or a part of it without a sign: those of many models ignore tools, a role or a
field that they do not know. `is_written` finds this by searching the rendering for the texts of the conversation.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tensorguard.data.conversations import call_names, name_of
from tensorguard.data.errors import DataError
from tensorguard.data.tokenise import is_fast

Render = Callable[[Sequence[Any], Any, bool], str]  # messages, tools, add generation prompt -> text

RENDERED_CHARACTERS, VALUE_CHARACTERS = 1_000_000_000, 3_000
"""How much is rendered to locate the turns of one conversation: enough for those of 400 messages, in a few seconds. To
render a value, such as the role of a message, takes about as long as to copy 3,000 characters."""
LEVEL_CHARACTERS = 16
"""What a value costs more for each level at which it is nested. Templates that indent write 4 characters for each, and
hold them in several copies: 300,000 numbers in 250 lists would become 300 million characters."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
REASONING_BEGIN, REASONING_END = "<think>", "</think>"
"""What encloses reasoning at the beginning of a content. The first may be absent: it may belong to the template."""
_SPACES = {character: None for character in range(0x3001) if chr(character).isspace()}
GREETING = ({"role": "user", "content": "Good morning."}, {"role": "assistant", "content": "Good morning to you."})


def renderer(tokenizer: Any, template: str | None) -> Render:
    """A function that renders conversations with `template`, or with the tokenizer's own template if it is None.

    Raises DataError if there is no template, if it cannot render a public example or leaves out a part of it, or if the
    assistant's turns cannot be located in the rendered text.
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
    if not is_written(GREETING, None, whole):
        raise DataError(
            "spec.model.chatTemplate: it leaves out the text of messages, or changes it (tried with a greeting and its "
            "answer): use another template"
        )
    if not spans:
        raise DataError(
            "spec.model.chatTemplate: the assistant's turns cannot be located, because the rendering of a conversation "
            "does not start with the rendering of its first turns: use another template"
        )
    return render


def assistant_turns(messages: Sequence[Any], tools: Any, render: Render, whole: str, end: int) -> list[tuple[int, int]]:
    """The character ranges [start, end) in `whole` of the assistant's turns that can be located.

    A turn is located if it has the whole text of its message, and the template can render the conversation up to it.
    Rendering starts again for each turn, so the time grows with the square of their number. So turns that start at or
    after `end` are not located, and none after RENDERED_CHARACTERS.

    Args:
        messages: the conversation, as `conversations.messages_of` returns it.
        tools: its tools, or None.
        render: the result of `renderer`.
        whole: the rendering of the whole conversation, without a generation prompt.
        end: how many characters of `whole` a model will read.
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
        try:
            before = render(messages[:i], tools, True)
            cost += 2 * len(before)
            if len(before) >= end and before[:end] == whole[:end]:
                break
            if not whole.startswith(before):
                continue
            after = render(messages[: i + 1], tools, False) if i + 1 < len(messages) else whole
        except Exception:  # many templates refuse a conversation that does not begin with a user
            continue
        if not after.startswith(before) or not whole.startswith(after):
            continue
        if is_written([message], None, whole[len(before) : len(after)]):
            spans.append((len(before), len(after)))
    return spans


def is_written(messages: Sequence[Any], tools: Any, text: str, *, all_reasoning: bool = False) -> bool:
    """Whether `text` has what the messages and tools have, whatever the template puts around it.

    The texts of messages must follow each other, and so must the names of the functions that they call. System messages
    and the names of tools may be anywhere, each in their order. White space is ignored, and a text may be written as a
    JSON string. A text of a few characters that is absent may be found in another text by chance. For the turns that
    are learned this is excluded, because `assistant_turns` searches each one alone.

    Args:
        messages: as `conversations.messages_of` returns them.
        tools: as `conversations.tools_of` returns them.
        text: the rendering.
        all_reasoning: False allows that the reasoning of an assistant's message is absent if other messages follow, as
            many models read it then.
    """
    systems: list[str] = []
    turns: list[str] = []
    for i, message in enumerate(messages):
        found = _texts_of(message, reasoning=all_reasoning or i + 1 == len(messages))
        (systems if message["role"] == "system" else turns).extend(found)
    text = _without_space(text)
    return all(_in_order(texts, text) for texts in (systems, turns, map(name_of, tools or ())))


def _texts_of(message: Mapping[str, Any], *, reasoning: bool) -> list[str]:
    """The texts of a message in the order in which templates write them."""
    content = message.get("content", "")
    if message["role"] != "assistant":
        return [content]
    thought, _, answer = content.rpartition(REASONING_END)
    fields = dict.fromkeys(message[name] for name in REASONING_FIELDS if isinstance(message.get(name), str))
    thoughts = [*fields, thought.strip().removeprefix(REASONING_BEGIN)]
    return [*(thoughts if reasoning else ()), answer, *call_names(message)]


def _in_order(parts: Iterable[str], text: str) -> bool:
    """Whether `text`, which has no space, has the parts one after the other."""
    at = 0
    for part in parts:
        forms = [_without_space(form) for form in (part, json.dumps(part.strip(), ensure_ascii=False)[1:-1])]
        size = 2 * len(forms[1]) + 1
        ends: list[int] = []
        while not ends:  # in a part of the text that grows, so that the time for all parts grows with the text's length
            ends = [found + len(form) for form in forms if (found := text.find(form, at, at + size)) >= 0]
            if not ends and at + size >= len(text):
                return False
            size *= 2
        at = ends[0]
    return True


def _without_space(text: str) -> str:
    return text.translate(_SPACES)


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
