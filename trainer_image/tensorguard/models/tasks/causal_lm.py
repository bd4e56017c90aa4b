"""CausalLM: the model learns to write text.

Which tokens are learned depends on the columns: the completion of a prompt, the assistant's turns of messages, or the
whole text. With `lossOn: All` it is every token in all three cases. The first token is never learned, because no token
precedes it.

The tokenizer's end token closes prompt/completion and text records, and a chat whose template ends its last turn
without a special token. The end token is learned. Padding is recognised by position, never by token id, because many
tokenizers pad with the end token.

Prompt and completion are tokenised separately and joined without anything between: a model that receives the prompt
sees exactly these tokens. Records longer than maxLength keep their first maxLength tokens, or are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorguard.data.chat import RENDERED_CHARACTERS, Render, assistant_turns, conversation, renderer, rendering_cost
from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import IGNORE_INDEX, Target
from tensorguard.data.tokenise import (
    CHARACTERS_PER_TOKEN,
    Encode,
    Example,
    cut,
    prefix_ids,
    special_ids,
    text_to_read,
    token_ids,
    token_spans,
)
from tensorguard.models.tasks.base import Task

if TYPE_CHECKING:
    import torch


class CausalLM(Task):
    """Each token is predicted from those before it. A record's loss is the mean over its own learned tokens."""

    auto_class = "AutoModelForCausalLM"
    peft_type = "CAUSAL_LM"
    target = Target.LEARNED_TOKENS

    def encoder(self, processor: Any, recipe: Recipe) -> Encode:
        if "messages" in recipe.columns:
            renderer(processor, recipe.chat_template)
            return _Messages(processor, recipe)
        if processor.eos_token_id is None:
            raise DataError(
                "spec.model.name: this model's tokenizer has no end token (eos_token), so a completion could not end"
            )
        return _Texts(processor, recipe)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from tensorguard.models.losses import causal_lm_losses

        return causal_lm_losses(logits, labels)

    def learns(self, labels: torch.Tensor) -> torch.Tensor:
        return super().learns(labels[:, 1:])

    def example_lines(self) -> Sequence[str]:
        return (
            'inputs = tokenizer("the beginning of a text", return_tensors="pt")',
            "written = model.eval().generate(**inputs, max_new_tokens=40)",
            "print(tokenizer.decode(written[0], skip_special_tokens=True))",
        )

    def dummy_labels(self, inputs: Mapping[str, torch.Tensor], generator: torch.Generator) -> torch.Tensor:
        return inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORE_INDEX)


@dataclass(frozen=True)
class _Texts:
    """prompt and completion, or text: pieces of text that are tokenised separately, then the end token."""

    tokenizer: Any
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | None]:
        roles = ("prompt", "completion") if "prompt" in self.recipe.columns else ("text",)
        pieces = [[text_to_read(value, self.recipe) for value in records[role]] for role in roles]
        whole = [[text for text in values if text is not None] for values in zip(*pieces)]
        usable = [i for i, texts in enumerate(whole) if len(texts) == len(roles) and texts[-1].strip()]
        tokens = [
            token_ids(self.tokenizer, [whole[i][part] for i in usable], add_special_tokens=False)
            for part in range(len(roles))
        ]
        start, end = prefix_ids(self.tokenizer), self.tokenizer.eos_token_id
        found: list[Example | None] = [None] * len(pieces[0])
        for i, *parts in zip(usable, *tokens):
            ids = start + [token for part in parts for token in part]
            if ids[-1:] != [end]:
                ids.append(end)
            given = len(start) + len(parts[0]) if self.recipe.loss_on == "Completion" else 1
            found[i] = cut(ids, [0] * given + [1] * (len(ids) - given), self.recipe)
        return found


@dataclass(frozen=True)
class _Messages:
    """Conversations, rendered by the chat template."""

    tokenizer: Any
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | None]:
        render = renderer(self.tokenizer, self.recipe.chat_template)
        special = special_ids(self.tokenizer)
        tools = records.get("tools") or [None] * len(records["messages"])
        rendered = [self._render(*record, render) for record in zip(records["messages"], tools)]
        usable = [
            (i, item, text)
            for i, item in enumerate(rendered)
            if item is not None and (text := text_to_read(item[-1], self.recipe)) is not None
        ]
        found: list[Example | None] = [None] * len(rendered)
        tokens = token_spans(self.tokenizer, [text for *_, text in usable], add_special_tokens=False)
        for (i, item, _), (ids, offsets) in zip(usable, tokens):
            found[i] = self._example(*item, render, ids, offsets, special)
        return found

    @property
    def _readable(self) -> int:
        """How many characters of a text a tokenizer receives at most."""
        return CHARACTERS_PER_TOKEN * self.recipe.max_length

    def _render(self, messages: Any, tools: Any, render: Render) -> tuple[list[Any], Any, str] | None:
        """A record's messages, its tools, and the text of both; None for an unusable record.

        Of a text that is too long for a tokenizer, only the beginning and one more character are returned: the texts of
        a whole batch are held at a time.
        """
        try:
            messages = conversation(messages)
            tools = conversation(tools) if tools else None
            if rendering_cost(messages) + rendering_cost(tools) > RENDERED_CHARACTERS:
                return None
            if not all("role" in message for message in messages):
                return None
            return messages, tools, render(messages, tools, False)[: self._readable + 1]
        except Exception:  # a template can raise anything for odd messages: only this record is dropped
            return None

    def _example(
        self,
        messages: list[Any],
        tools: Any,
        whole: str,
        render: Render,
        ids: list[int],
        offsets: list[tuple[int, int]],
        special: frozenset[int],
    ) -> Example | None:
        """An example of the text of `_render` and its tokens; None for an unusable record."""
        spans: list[tuple[int, int]] = []
        if self.recipe.loss_on != "All":
            read = max((end for _, end in offsets[: self.recipe.max_length]), default=0)
            try:
                if len(whole) > self._readable:  # `_render` cut it
                    whole = render(messages, tools, False)
                spans = assistant_turns(messages, tools, render, whole, read)
            except Exception:  # as in `_render`
                return None
        learned = self._learned(ids, offsets, spans)
        ends = self.tokenizer.eos_token_id
        closes = messages[-1]["role"] == "assistant" and ends is not None
        if closes and not _ends_special(whole, ids, offsets, special):
            learned.append(1 if self.recipe.loss_on == "All" or (spans and spans[-1][1] == len(whole)) else 0)
            ids = [*ids, ends]
        return cut(ids, learned, self.recipe)

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


def _ends_special(text: str, ids: list[int], offsets: list[tuple[int, int]], special: frozenset[int]) -> bool:
    """Whether the last token with more than white space is a special one."""
    for token, (start, end) in zip(reversed(ids), reversed(offsets)):
        if token in special:
            return True
        if text[start:end].strip():
            return False
    return False
