"""How many tokens of a record a model has positions for, from its config and its modules, without its weights.

In: a model, also on the device `meta`. Out: the number, or a refusal of the manifest's maxLength. On a GPU, a position
that does not exist ends the process, so this is known before a pass.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from tensafe_api.reasons import Reason

_FIELDS = ("max_position_embeddings", "max_seq_len")
"""Where configs have the number of positions. transformers maps most other names to the first one."""


class TooManyTokensError(ValueError):
    """Records may be longer than the model can read. The message is one sentence for the user."""

    reason: ClassVar[Reason] = Reason.INVALID_MANIFEST


def check_length(model: Any, name: str, length: int) -> None:
    """Check that a model, named `name`, has positions for records of `length` tokens.

    Raises:
        TooManyTokensError: it has fewer.
    """
    positions = count_positions(model)
    if positions is not None and length > positions:
        raise TooManyTokensError(
            f"spec.training.maxLength: {length} is more than the {positions} positions of {name}; lower it"
        )


def count_positions(model: Any) -> int | None:
    """The number of positions that a record can use; None for a model without a limit.

    An embedding of positions that has a padding index, such as RoBERTa's, counts from the row after that one. It is
    recognised by its number of rows: that of the config.
    """
    config = model.config.get_text_config()
    found = (getattr(config, field, None) for field in _FIELDS)
    positions = next((each for each in found if each is not None and each > 0), None)  # -1 in XLNet's: no limit
    if positions is None:
        return None
    embeddings = [
        module
        for module in model.modules()
        if isinstance(weight := getattr(module, "weight", None), torch.Tensor)
        and weight.ndim == 2
        and len(weight) == positions
        and module is not model.get_input_embeddings()
    ]
    unused = [index + 1 for each in embeddings if (index := getattr(each, "padding_idx", None)) is not None]
    return int(positions - max(unused, default=0))
