"""Loads a model's tokenizer without the model's weights: a process that only reads data does not need them.

In: a `ModelSource`. Out: a tokenizer that pads on the right. Then a task (`models.tasks`) turns records into tokens.
"""

from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tensorguard.models.source import ModelSource
from tensorguard.models.unsupported import UnsupportedModelError


def load_tokenizer(
    source: ModelSource, *, chat_template: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The model's tokenizer. It pads on the right, with its pad token or, without one, with its end token."""
    tokenizer: PreTrainedTokenizerBase = read_pretrained(AutoTokenizer, source, trust_remote_code)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token is None:
        raise UnsupportedModelError(
            f"spec.model.name: the tokenizer of '{source.name}' has no pad, end or unknown token: give it a pad token."
        )
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def read_pretrained(factory: Any, source: ModelSource, trust_remote_code: bool, **settings: Any) -> Any:
    """`factory.from_pretrained` for the source. Its errors, which have many lines, are raised as one sentence."""
    try:
        return factory.from_pretrained(
            source.location, revision=source.revision or "main", trust_remote_code=trust_remote_code, **settings
        )
    except (OSError, ValueError) as error:
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"spec.model.name: '{source.name}' contains custom code: set spec.model.trustRemoteCode to true if you "
                "trust it with the training data."
            ) from error
        reason = str(error).strip().splitlines()[0].split(". ")[0].rstrip(".:")
        raise UnsupportedModelError(f"spec.model.name: '{source.name}' cannot be loaded: {reason}.") from error
