"""SequenceClassification: the model learns to put a text into one of several classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Target
from tensorguard.data.tokenise import Encode, Example, text_to_read, token_ids
from tensorguard.data.unusable import Unusable
from tensorguard.data.values import UnusableValue
from tensorguard.models.tasks.base import Task

if TYPE_CHECKING:
    import torch


class SequenceClassification(Task):
    """One class for each record. Its loss is the cross entropy of that class."""

    auto_class = "AutoModelForSequenceClassification"
    peft_type = "SEQ_CLS"
    target = Target.RECORD_LABEL
    heads = ("classifier", "score")

    def encoder(self, processor: Any, recipe: Recipe) -> Encode:
        return _LabelledTexts(processor, recipe)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from tensorguard.models.losses import classification_losses

        return classification_losses(logits, labels)

    def counts(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[int, ...]:
        return (int((logits.argmax(dim=-1) == labels).sum()),)

    def metrics(self, counts: Sequence[int], records: int) -> Mapping[str, float]:
        return {"accuracy": sum(counts) / records}

    def example_lines(self) -> Sequence[str]:
        return (
            'inputs = tokenizer("a text to classify", return_tensors="pt")',
            "print(base.config.id2label[int(model.eval()(**inputs).logits.argmax())])",
        )


@dataclass(frozen=True)
class _LabelledTexts:
    """A text and its class."""

    tokenizer: Any
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | Unusable | None]:
        found: list[Example | Unusable | None] = [None] * len(records["text"])
        usable: list[tuple[int, str, int]] = []
        for i, (text, label) in enumerate(zip(records["text"], records["label"])):
            try:
                number = self.recipe.class_of(label)
            except UnusableValue as error:
                found[i] = error.kind
                continue
            if (read := text_to_read(text, self.recipe)) is not None:
                usable.append((i, read, number))
        limit = {"truncation": True, "max_length": self.recipe.max_length} if self.recipe.truncate else {}
        tokens = token_ids(self.tokenizer, [text for _, text, _ in usable], add_special_tokens=True, **limit)
        for (i, _, number), ids in zip(usable, tokens):
            if not ids:
                found[i] = Unusable.NOTHING_TO_LEARN
            elif len(ids) <= self.recipe.max_length:
                found[i] = Example(ids, number)
        return found
