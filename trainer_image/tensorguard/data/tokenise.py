"""What every task needs to make tokens of a record: the forms of an example and of a tokeniser, and shared helpers.

A task (`tensorguard.models.tasks`) checks the tokenizer against the job once, on public examples, and returns a
`Tokeniser`: a function from a batch of converted columns to one `Example` for each record, or why there is none. The
batch is there for speed alone: an example depends on its own record and on nothing else, and no record makes it raise.
`shards` calls it in Ray tasks, for the private and for the public data set alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import TEXT, Input, Target
from tensorguard.data.unusable import Unusable

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 4096, 64 << 20
CHARACTERS_PER_TOKEN = 64
"""A tokenizer receives at most this many characters of a text for each token of maxLength; usual texts have about four.
It needs some 300 bytes of memory for each character, so that a long text would take that of the whole worker."""
WORD_CHARACTERS = 1_000
"""Spaces divide a longer word for a tokenizer without a fast version: its time grows with the square of the length."""
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{WORD_CHARACTERS + 1},}}+")
_CHARACTERS_AT_ONCE = 1 << 20
"""How many characters a tokenizer receives in one call, or one text."""


class Example(NamedTuple):
    """One record as a model reads it.

    Attributes:
        inputs: the tokens of a text, or the pixels of an image (`tensorguard.data.shard.Pixels`).
        target: one number for each token, or one for the record, as the task's `Target` defines.
    """

    inputs: list[int] | bytes
    target: list[int] | int


Encode = Callable[[Mapping[str, Sequence[Any]]], list[Example | Unusable | None]]
"""From columns (by role; equally long; as `raw_table` converts them) to one Example for each record, or why it cannot
be used, or None for a record that is left out because it is longer than maxLength (`dataset.overLength: Drop`)."""


@dataclass(frozen=True)
class Tokeniser:
    """Makes inputs and targets of records. It can be pickled.

    Attributes:
        encode: the function.
        target: what the target of an example is.
        inputs: what the inputs of an example are.
    """

    encode: Encode
    target: Target
    inputs: Input = TEXT

    @property
    def batch_rows(self) -> int:
        """The number of records to make at a time, so that they fit into memory."""
        return max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // self.inputs.bytes))

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | Unusable | None]:
        """The results of `encode` for the records of the columns `records` (by role; equally long)."""
        return self.encode(records)


def text_to_read(text: str, recipe: Recipe) -> str | None:
    """A text, cut to what maxLength tokens can need (CHARACTERS_PER_TOKEN).

    None for a longer text where the job drops records that are too long.
    """
    limit = CHARACTERS_PER_TOKEN * recipe.max_length
    if len(text) <= limit:
        return text
    return text[:limit] if recipe.truncate else None


def prefix_ids(tokenizer: Any) -> list[int]:
    """The special tokens that this tokenizer puts before a text (often one, `<s>`; often none)."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    with_special = tokenizer("a")["input_ids"]
    at = next((i for i in range(len(with_special)) if with_special[i : i + len(bare)] == bare), 0)
    return list(with_special[:at])


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The ids of all special tokens, including those that only a chat template uses."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def is_fast(tokenizer: Any) -> bool:
    """Whether a tokenizer is one of the `tokenizers` library, which knows the characters of each token."""
    return bool(getattr(tokenizer, "is_fast", False))  # that of mistral-common has no such attribute


def _divided(word: re.Match[str]) -> str:
    return " ".join(word[0][at : at + WORD_CHARACTERS] for at in range(0, len(word[0]), WORD_CHARACTERS))


def token_ids(tokenizer: Any, texts: Sequence[str], **options: Any) -> Iterator[list[int]]:
    """The tokens of each text; `options` go to the tokenizer.

    A tokenizer without a fast version receives words of at most WORD_CHARACTERS characters.
    """
    if not is_fast(tokenizer):
        texts = [_LONG_WORD.sub(_divided, text) for text in texts]
    for found in _tokenised(tokenizer, texts, options):
        yield from found["input_ids"]


def token_spans(
    tokenizer: Any, texts: Sequence[str], **options: Any
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """The tokens of each text, and the characters [start, end) of each token, which only a fast tokenizer knows.

    `options` go to the tokenizer.
    """
    for found in _tokenised(tokenizer, texts, {"return_offsets_mapping": True, **options}):
        yield from zip(found["input_ids"], found["offset_mapping"])


def _tokenised(tokenizer: Any, texts: Sequence[str], options: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What the tokenizer returns for all texts, in their order, for _CHARACTERS_AT_ONCE at a time."""
    group: list[str] = []
    size = 0
    for text in texts:
        if group and size + len(text) > _CHARACTERS_AT_ONCE:
            yield tokenizer(group, return_attention_mask=False, verbose=False, **options)
            group, size = [], 0
        group.append(text)
        size += len(text)
    if group:
        yield tokenizer(group, return_attention_mask=False, verbose=False, **options)
