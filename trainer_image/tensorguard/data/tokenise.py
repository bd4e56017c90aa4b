"""One record to tokens, and which of them are learned.

`tokeniser(tokenizer, recipe)` checks the tokenizer against the job once, on public examples, and returns a function
from a batch of raw columns to one `Example` (or None: dropped) for each record. The batch is there for speed alone:
an example depends on its own record and on nothing else, and no record makes it raise. `shards` calls it in Ray
tasks, for the private and for the public data set alike.

What is learned: with prompt and completion, the completion; with messages, the assistant's turns; with text,
everything; with `lossOn: All`, everything in any case. The tokenizer's end token closes prompt/completion and text
records (and a chat whose template closes its last turn with no special token), and is learned: padding is told by
position, never by token id, since many tokenizers pad with the end token. The first token is never learned: there is
nothing to predict it from. Prompt and completion are tokenised apart and put one after the other, with nothing
between: exactly what a model sees that is given the prompt and continues. Records longer than maxLength keep their
first maxLength tokens, or are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorguard.data.chat import assistant_turns, conversation, renderer
from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe


class Example(NamedTuple):
    """One record in tokens. target: for CausalLM 0 or 1 for each token (1: learned), for classification the class."""

    input_ids: list[int]
    target: list[int] | int


Tokeniser = Callable[[Mapping[str, Sequence[Any]]], list[Example | None]]


def tokeniser(tokenizer: Any, recipe: Recipe) -> Tokeniser:
    """A function from columns (by role; equally long) to one Example or None for each record; it can be pickled.

    Raises DataError where tokenizer and recipe cannot go together, found out on public examples.
    """
    if recipe.kind == "label":
        return _Classification(tokenizer, recipe)
    if recipe.kind == "messages":
        renderer(tokenizer, recipe.chat_template)
        return _Messages(tokenizer, recipe)
    if tokenizer.eos_token_id is None:
        raise DataError(
            "spec.model.name: this model's tokenizer has no end token (eos_token), so a completion could not end"
        )
    return _Texts(tokenizer, recipe)


@dataclass(frozen=True)
class _Classification:
    tokenizer: Any
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | None]:
        texts = [text_or_none(value) for value in records["text"]]
        labels = [label_or_none(value, self.recipe) for value in records["label"]]
        usable = [i for i, text in enumerate(texts) if text is not None and labels[i] is not None]
        limit = {"truncation": True, "max_length": self.recipe.max_length} if self.recipe.truncate else {}
        found: list[Example | None] = [None] * len(texts)
        for i, ids in zip(usable, _ids(self.tokenizer, [texts[i] for i in usable], add_special_tokens=True, **limit)):
            if 0 < len(ids) <= self.recipe.max_length:
                found[i] = Example(ids, labels[i])
        return found


@dataclass(frozen=True)
class _Texts:
    """prompt and completion, or text: pieces of text, each tokenised alone, then the end token."""

    tokenizer: Any
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | None]:
        roles = ("prompt", "completion") if self.recipe.kind == "prompt" else ("text",)
        pieces = [[text_or_none(value) for value in records[role]] for role in roles]
        usable = [i for i, values in enumerate(zip(*pieces)) if None not in values]
        tokens = [_ids(self.tokenizer, [piece[i] for i in usable], add_special_tokens=False) for piece in pieces]
        start, end = prefix_ids(self.tokenizer), self.tokenizer.eos_token_id
        found: list[Example | None] = [None] * len(pieces[0])
        for i, *parts in zip(usable, *tokens):
            ids = start + [token for part in parts for token in part]
            if ids[-1:] != [end]:
                ids.append(end)
            given = len(start) + len(parts[0]) if self.recipe.loss_on == "Completion" else 1
            found[i] = _cut(ids, [0] * given + [1] * (len(ids) - given), self.recipe)
        return found


@dataclass(frozen=True)
class _Messages:
    tokenizer: Any
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | None]:
        render = renderer(self.tokenizer, self.recipe.chat_template)
        special = special_ids(self.tokenizer)
        tools = records.get("tools") or [None] * len(records["messages"])
        rendered = [
            self._render(messages, its_tools, render) for messages, its_tools in zip(records["messages"], tools)
        ]
        usable = [i for i, item in enumerate(rendered) if item is not None]
        found: list[Example | None] = [None] * len(rendered)
        if not usable:
            return found
        encoded = self.tokenizer(
            [rendered[i][0] for i in usable], add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        for i, ids, offsets in zip(usable, encoded["input_ids"], encoded["offset_mapping"]):
            text, spans, closes = rendered[i]
            learned = self._learned(ids, offsets, spans)
            if closes and self.tokenizer.eos_token_id is not None and not _ends_special(text, ids, offsets, special):
                learned.append(1 if self.recipe.loss_on == "All" or (spans and spans[-1][1] == len(text)) else 0)
                ids = [*ids, self.tokenizer.eos_token_id]
            found[i] = _cut(ids, learned, self.recipe)
        return found

    def _render(self, messages: Any, tools: Any, render: Any) -> tuple[str, list[tuple[int, int]], bool] | None:
        try:
            messages = conversation(messages)
            text, spans = assistant_turns(messages, conversation(tools) if tools else None, render)
            return text_or_none(text), spans, messages[-1]["role"] == "assistant"
        except Exception:  # a template may raise anything for odd messages: this record is dropped, no other is touched
            return None

    def _learned(self, ids: list[int], offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> list[int]:
        """1 for each token that ends inside one of the spans."""
        if self.recipe.loss_on == "All":
            return [0] * min(1, len(ids)) + [1] * (len(ids) - 1)
        learned = [0] * len(ids)
        at = 0
        for start, end in spans:
            while at < len(ids) and offsets[at][1] <= start:
                at += 1
            while at < len(ids) and offsets[at][1] <= end:
                learned[at] = int(at > 0)
                at += 1
        return learned


def text_or_none(value: Any) -> str | None:
    """A value as text that a tokenizer can take (bytes as UTF-8, what is none replaced), or None if it is no text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def label_or_none(value: Any, recipe: Recipe) -> int | None:
    """A value as a class: one of the recipe's names, else a whole number in [0, labels) of any type; else None."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        if value in recipe.label_names:
            return recipe.label_names.index(value)
        value = value.strip()
        if not (value.isascii() and value.isdecimal() and len(value) < 10):
            return None
    elif not isinstance(value, int) and not (isinstance(value, float) and value.is_integer()):
        return None
    return int(value) if 0 <= int(value) < recipe.labels else None


def prefix_ids(tokenizer: Any) -> list[int]:
    """The special tokens that this tokenizer puts before a text (often one, `<s>`; often none)."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    dressed = tokenizer("a")["input_ids"]
    at = next((i for i in range(len(dressed)) if dressed[i : i + len(bare)] == bare), 0)
    return list(dressed[:at])


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The ids of all special tokens, those that only a chat template uses included."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def _ids(tokenizer: Any, texts: list[str], **options: Any) -> list[list[int]]:
    if not texts:
        return []
    return tokenizer(texts, return_attention_mask=False, verbose=False, **options)["input_ids"]


def _cut(ids: list[int], learned: list[int], recipe: Recipe) -> Example | None:
    if not ids or (len(ids) > recipe.max_length and not recipe.truncate):
        return None
    return Example(ids[: recipe.max_length], learned[: recipe.max_length])


def _ends_special(text: str, ids: list[int], offsets: list[tuple[int, int]], special: frozenset[int]) -> bool:
    """Whether the last token that is more than white space is a special one."""
    for token, (start, end) in zip(reversed(ids), reversed(offsets)):
        if token in special:
            return True
        if text[start:end].strip():
            return False
    return False
