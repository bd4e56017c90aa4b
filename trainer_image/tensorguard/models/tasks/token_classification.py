"""TokenClassification: the model learns to give each word of a text one of several classes (tags).

A record is a list of words and a list of tags, one for each word. The words are joined by single spaces and tokenised
as one text, as any text will be when the adapter is used. The tag of a word is the label of the first token that
overlaps the word; all other tokens, special ones included, have no label. A record cannot be used if the lists differ
in length, if a word is not a string, or if a tag is not a class. Words behind `training.maxLength` have no label.

The metric is the entity F1 that seqeval computes in its default mode, for tags in the IOB2 form: `B-x` begins an entity
of type x, `I-x` continues it, `O` is outside of entities. An `I-x` that does not follow a tag of type x begins an
entity too. An entity is right if its type, its first and its last word are right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import IGNORE_INDEX, Target
from tensorguard.data.tokenise import Encode, Example, is_fast, text_to_read, token_spans
from tensorguard.data.unusable import Unusable
from tensorguard.data.values import UnusableValue
from tensorguard.models.tasks.base import Task

if TYPE_CHECKING:
    import torch

Tag = tuple[str, str]
"""A tag's prefix (B, I or O) and its type; the type of O is empty."""
Entity = tuple[str, int, int]
"""An entity's type, its first word, and the word behind its last one."""


class TokenClassification(Task):
    """One class for each word. A record's loss is the mean of the cross entropy over its own words."""

    auto_class = "AutoModelForTokenClassification"
    peft_type = "TOKEN_CLS"
    target = Target.TOKEN_LABELS
    heads = ("classifier", "score")

    def encoder(self, processor: Any, recipe: Recipe) -> Encode:
        if not is_fast(processor):
            raise DataError(
                "spec.model.name: this model's tokenizer has no fast version, which TokenClassification needs to find "
                "the first token of a word; choose another model"
            )
        return _TaggedWords(processor, recipe)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from tensorguard.models.losses import token_classification_losses

        return token_classification_losses(logits, labels)

    def counts(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[int, ...]:
        tags = iob2_tags(self.label_names)
        if tags is None:
            return ()
        right = found = there = 0
        for record, gold in zip(logits.argmax(dim=-1).tolist(), labels.tolist()):
            words = [i for i, label in enumerate(gold) if label != IGNORE_INDEX]
            predicted = entities([tags[record[i]] for i in words])
            expected = entities([tags[gold[i]] for i in words])
            right += len(predicted & expected)
            found += len(predicted)
            there += len(expected)
        return right, found, there

    def metrics(self, counts: Sequence[int], records: int) -> Mapping[str, float]:
        if not counts:
            return {}
        right, found, there = counts
        return {"f1": 2 * right / (found + there) if found + there else 0.0}

    def example_lines(self) -> Sequence[str]:
        return (
            'inputs = tokenizer("a text whose words have classes", return_tensors="pt")',
            "classes = model.eval()(**inputs).logits[0].argmax(-1).tolist()",
            "print([(token, base.config.id2label[number]) for token, number in zip(inputs.tokens(), classes)])",
        )


@dataclass(frozen=True)
class _TaggedWords:
    """Words and their tags."""

    tokenizer: Any
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | Unusable | None]:
        found: list[Example | Unusable | None] = [None] * len(records["tokens"])
        usable: list[tuple[int, list[str], list[int], str]] = []
        for i, (words, tags) in enumerate(zip(records["tokens"], records["tags"])):
            try:
                tagged = self._tagged(json.loads(words), json.loads(tags))
            except UnusableValue as error:
                found[i] = error.kind
                continue
            if (text := text_to_read(" ".join(tagged[0]), self.recipe)) is not None:
                usable.append((i, *tagged, text))
        limit = {"truncation": True, "max_length": self.recipe.max_length} if self.recipe.truncate else {}
        encoded = token_spans(self.tokenizer, [text for *_, text in usable], **limit)
        for (i, words, classes, _), (ids, offsets) in zip(usable, encoded):
            labels = first_token_labels(words, classes, offsets)
            if all(label == IGNORE_INDEX for label in labels):
                found[i] = Unusable.NOTHING_TO_LEARN
            elif len(ids) <= self.recipe.max_length:
                found[i] = Example(ids, labels)
        return found

    def _tagged(self, words: list[str], tags: list[str]) -> tuple[list[str], list[int]]:
        """The words and classes of one record. Raises UnusableValue where they do not fit."""
        classes = [self.recipe.class_of(tag) for tag in tags]
        if len(words) != len(classes):
            raise UnusableValue(Unusable.UNEVEN)
        return words, classes


def first_token_labels(words: Sequence[str], classes: Sequence[int], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """A label for each token of the words joined by spaces: the class of a word at its first token, else -100.

    offsets: for each token, its first character in the joined text and the one behind its last; special tokens are
    empty. A word without a token of its own (it is empty, or cut off) has no label.
    """
    labels = [IGNORE_INDEX] * len(offsets)
    token = start = 0
    for word, number in zip(words, classes):
        end = start + len(word)
        while token < len(offsets) and (offsets[token][1] <= start or offsets[token][0] == offsets[token][1]):
            token += 1
        if token < len(offsets) and offsets[token][0] < end and offsets[token][1] > start:
            labels[token] = number
            token += 1
        start = end + 1
    return labels


def iob2_tags(names: Sequence[str]) -> list[Tag] | None:
    """The classes as tags; None where a name is not in the IOB2 form, or where there are no names."""
    tags = []
    for name in names:
        prefix, dash, kind = name.partition("-")
        if name != "O" and not (prefix in ("B", "I") and dash and kind):
            return None
        tags.append((prefix, kind))
    return tags or None


def entities(tags: Sequence[Tag]) -> set[Entity]:
    """The entities in the tags of one text's words."""
    found = set()
    kind, first = "", 0
    for i, (prefix, next_kind) in enumerate([*tags, ("O", "")]):
        if prefix == "I" and next_kind == kind:
            continue
        if kind:
            found.add((kind, first, i))
        kind, first = next_kind, i
    return found
