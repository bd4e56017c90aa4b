"""Loads a model's tokenizer without the model's weights: a process that only reads data does not need them.

In: a `ModelSource`. Out: a tokenizer that pads on the right. Then a task (`models.tasks`) turns records into tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tensorguard.models.file_check import find_broken_json
from tensorguard.models.source import ModelNotFoundError, ModelSource
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
    """`factory.from_pretrained` for the source. Raises as `loading`."""
    with loading(source, trust_remote_code):
        return factory.from_pretrained(
            source.location, revision=source.revision or "main", trust_remote_code=trust_remote_code, **settings
        )


@contextmanager
def loading(source: ModelSource, trust_remote_code: bool) -> Iterator[None]:
    """Within this context, only the files of a model are read: raise whatever goes wrong as one sentence.

    transformers checks few of the values that it reads, so its errors are of any class. They have many lines, and quote
    no record.

    Raises:
        UnsupportedModelError: transformers refuses the model.
        ModelNotFoundError: a file is cut or damaged, or the error is none that transformers raises on purpose. Another
            attempt may succeed, for instance if a download was interrupted.
    """
    try:
        yield
    except (ModelNotFoundError, UnsupportedModelError):
        raise
    except Exception as error:
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"spec.model.name: '{source.name}' contains custom code: set spec.model.trustRemoteCode to true if you "
                "trust it with the training data."
            ) from error
        if not source.is_hub and (broken := find_broken_json(Path(source.location))):
            raise ModelNotFoundError(f"spec.model.name: {broken}.") from error
        reason = (str(error).strip() or "no message").splitlines()[0].split(". ")[0].rstrip(".: ")
        refused = isinstance(error, OSError | ValueError)
        if not refused:
            reason = f"{type(error).__name__}: {reason}"
        raise (UnsupportedModelError if refused else ModelNotFoundError)(
            f"spec.model.name: '{source.name}' cannot be loaded ({reason}): check its files, or choose another model."
        ) from error
