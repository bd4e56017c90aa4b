"""CausalLM: the model learns to write text.

Which tokens are learned depends on the columns: the completion of a prompt, the assistant's turns of messages, or the
whole text. With `lossOn: All` it is every token in all three cases. The first token is never learned, because no token
precedes it.

The tokenizer's end token closes prompt/completion and text records, and a chat whose template ends its last turn
without a special token. The end token is learned. Padding is recognised by position, never by token id, because many
tokenizers pad with the end token.

Prompt and completion are tokenised separately and joined without anything between: a model that receives the prompt
sees exactly these tokens.

Records longer than maxLength are cut, or left out. A text and a conversation keep their beginning. Of a prompt and its
completion, the prompt loses its beginning, so that the completion stays. The end of the prompt keeps a quarter of
maxLength, if it has as many tokens, and a completion that is longer than the rest loses its end. A record without a
learned token is unusable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorguard.data.chat import (
    RENDERED_CHARACTERS,
    Render,
    assistant_turns,
    is_written,
    renderer,
    rendering_cost,
)
from tensorguard.data.conversations import NotAConversation, messages_of, tools_of
from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import IGNORE_INDEX, Target
from tensorguard.data.tokenise import (
    CHARACTERS_PER_TOKEN,
    Encode,
    Example,
    prefix_ids,
    special_ids,
    text_to_read,
    token_ids,
    token_spans,
)
from tensorguard.data.unusable import Unusable
from tensorguard.models.tasks.base import Task

if TYPE_CHECKING:
    import torch

PROMPT_SHARE = 4
"""The end of a prompt keeps maxLength / PROMPT_SHARE tokens, however long its completion is."""


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

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | Unusable | None]:
        found: list[Example | Unusable | None] = [None] * len(next(iter(records.values())))
        has_prompt = "prompt" in self.recipe.columns
        texts = records["completion" if has_prompt else "text"]
        usable, read = [], []
        for i, (prompt, text) in enumerate(zip(records["prompt"] if has_prompt else [""] * len(texts), texts)):
            if not isinstance(prompt, str) or not isinstance(text, str) or not text.strip():
                found[i] = Unusable.NO_TEXT
                continue
            end = prompt[-CHARACTERS_PER_TOKEN * self.recipe.max_length :] if self.recipe.truncate else prompt
            pieces = [text_to_read(piece, self.recipe) for piece in (end, text)]
            if None not in pieces:
                usable.append(i)
                read.append([piece for piece in pieces if piece is not None])
        prompts = self._tokens([prompt for prompt, _ in read]) if has_prompt else [[] for _ in read]
        start = prefix_ids(self.tokenizer)
        for i, *tokens in zip(usable, prompts, self._tokens([text for _, text in read])):
            found[i] = self._example(start, *tokens)
        return found

    def _tokens(self, texts: Sequence[str]) -> Iterable[list[int]]:
        return token_ids(self.tokenizer, texts, add_special_tokens=False)

    def _example(self, start: list[int], prompt: list[int], text: list[int]) -> Example | Unusable | None:
        """An example of the tokens of a record."""
        if text[-1:] != [self.tokenizer.eos_token_id]:
            text = [*text, self.tokenizer.eos_token_id]
        length = len(start) + len(prompt) + len(text)
        room = max(0, self.recipe.max_length - len(start))
        kept = min(len(prompt), max(room - len(text), room // PROMPT_SHARE))
        inputs = [*start, *prompt[len(prompt) - kept :], *text[: room - kept]][: self.recipe.max_length]
        given = max(1, len(start) + kept) if self.recipe.loss_on == "Completion" else 1
        return _checked(inputs, [int(at >= given) for at in range(len(inputs))], length, self.recipe)


@dataclass(frozen=True)
class _Messages:
    """Conversations, rendered by the chat template."""

    tokenizer: Any
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | Unusable | None]:
        render = renderer(self.tokenizer, self.recipe.chat_template)
        special = special_ids(self.tokenizer)
        tools = records.get("tools") or [None] * len(records["messages"])
        rendered = [self._render(*record, render) for record in zip(records["messages"], tools)]
        usable = [
            (i, item, text)
            for i, item in enumerate(rendered)
            if isinstance(item, tuple) and (text := text_to_read(item[-1], self.recipe)) is not None
        ]
        found: list[Example | Unusable | None] = [item if isinstance(item, Unusable) else None for item in rendered]
        tokens = token_spans(self.tokenizer, [text for *_, text in usable], add_special_tokens=False)
        for (i, item, _), (ids, offsets) in zip(usable, tokens):
            found[i] = self._example(*item, render, ids, offsets, special)
        return found

    @property
    def _readable(self) -> int:
        """How many characters of a text a tokenizer receives at most."""
        return CHARACTERS_PER_TOKEN * self.recipe.max_length

    def _render(self, messages: Any, tools: Any, render: Render) -> tuple[list[Any], Any, str] | Unusable:
        """A record's messages, its tools, and the text of both; or why it cannot be used.

        Of a text that is too long for a tokenizer, only the beginning and one more character are returned: the texts of
        a whole batch are held at a time.
        """
        try:
            messages, tools = messages_of(messages), tools_of(tools)
        except NotAConversation:
            return Unusable.NO_CONVERSATION
        if 2 * (rendering_cost(messages) + rendering_cost(tools)) > RENDERED_CHARACTERS:
            return Unusable.TOO_LARGE  # to locate the first turn takes two renderings
        try:
            text = render(messages, tools, False)
        except Exception:  # a template can raise anything for messages that it does not know
            return Unusable.REWRITTEN
        if not is_written(messages, tools, text, all_reasoning=self.recipe.loss_on == "All"):
            return Unusable.REWRITTEN
        return messages, tools, text[: self._readable + 1]

    def _example(
        self,
        messages: list[Any],
        tools: Any,
        whole: str,
        render: Render,
        ids: list[int],
        offsets: list[tuple[int, int]],
        special: frozenset[int],
    ) -> Example | Unusable | None:
        """An example of the text of `_render` and its tokens."""
        spans: list[tuple[int, int]] = []
        if self.recipe.loss_on != "All":
            read = max((end for _, end in offsets[: self.recipe.max_length]), default=0)
            if len(whole) > self._readable:  # `_render` cut it
                whole = render(messages, tools, False)
            spans = assistant_turns(messages, tools, render, whole, read)
        learned = self._learned(ids, offsets, spans)
        ends = self.tokenizer.eos_token_id
        closes = messages[-1]["role"] == "assistant" and ends is not None
        if closes and not _ends_special(whole, ids, offsets, special):
            learned.append(1 if self.recipe.loss_on == "All" or (spans and spans[-1][1] == len(whole)) else 0)
            ids = [*ids, ends]
        limit = self.recipe.max_length
        return _checked(ids[:limit], learned[:limit], len(ids), self.recipe)

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


def _checked(inputs: list[int], target: list[int], length: int, recipe: Recipe) -> Example | Unusable | None:
    """The example of a record that has `length` tokens, cut to maxLength; None if it is longer and must not be cut."""
    if length > recipe.max_length and not recipe.truncate:
        return None
    return Example(inputs, target) if any(target[1:]) else Unusable.NOTHING_TO_LEARN


def _ends_special(text: str, ids: list[int], offsets: list[tuple[int, int]], special: frozenset[int]) -> bool:
    """Whether the last token with more than white space is a special one."""
    for token, (start, end) in zip(reversed(ids), reversed(offsets)):
        if token in special:
            return True
        if text[start:end].strip():
            return False
    return False
