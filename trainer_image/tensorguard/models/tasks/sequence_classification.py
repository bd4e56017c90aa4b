"""SequenceClassification: the model learns to put a text into one of several classes.

Where only the head is trained, it is a linear layer on the mean of what the model gives for the tokens of a text. The
mean of a linear layer's outputs is its output for the mean. So the adapter is one of token classification, which plain
peft loads, and the class of a text is the largest mean of the logits of its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensafe_api.tasks import SEQUENCE_CLASSIFICATION, TaskContract
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Target
from tensorguard.data.tokenise import Encode, Example, text_to_read, token_ids
from tensorguard.data.unusable import Unusable
from tensorguard.data.values import UnusableValue
from tensorguard.models.tasks.base import Task

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class SequenceClassification(Task):
    """One class for each record. Its loss is the cross entropy of that class."""

    auto_class = "AutoModelForSequenceClassification"
    peft_type = "SEQ_CLS"
    target = Target.RECORD_LABEL
    heads = ("classifier", "score")

    def of_head(self) -> Task:
        return HeadOnMean(self.labels, self.label_names)

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


class HeadOnMean(SequenceClassification):
    """One class for each record, by a head on the mean of its tokens."""

    auto_class = "AutoModelForTokenClassification"
    peft_type = "TOKEN_CLS"

    @property
    def contract(self) -> TaskContract:
        return SEQUENCE_CLASSIFICATION

    def prepare(self, model: PreTrainedModel) -> None:
        """Let the head read the mean of the hidden states of a text, [m, width], instead of each of them."""
        masks: list[torch.Tensor] = []

        def keep_mask(_model: Any, _args: Any, kwargs: dict[str, Any]) -> None:
            masks[:] = [kwargs["attention_mask"]]

        def mean(_head: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            if args[0].dim() == 2:  # a mean that was computed before (`frozen_prefix`)
                return args
            weights = masks[0].unsqueeze(-1).to(args[0].dtype)
            return ((args[0] * weights).sum(dim=1) / weights.sum(dim=1),)

        (head,) = (module for name, module in model.named_children() if name.endswith(self.heads))
        model.register_forward_pre_hook(keep_mask, with_kwargs=True)
        head.register_forward_pre_hook(mean)

    def example_lines(self) -> Sequence[str]:
        return (
            'inputs = tokenizer("a text to classify", return_tensors="pt")',
            "logits = model.eval()(**inputs).logits[0].mean(dim=0)  # the mean over the tokens is what was trained",
            "print(base.config.id2label[int(logits.argmax())])",
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
