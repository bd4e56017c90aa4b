"""Attention whose kernel does not depend on who else is in the batch.

In: a loaded transformers model. Out: the same model, told to attend through `RECORD_SDPA`. Then `lora` attaches the
adapter.

transformers' `sdpa` looks at the whole batch's padding mask and drops a mask that is all ones. One padded record then
decides for its neighbours whether torch runs the masked or the unmasked kernel, and in bf16 those differ by 0.4 %: a
record's gradient would tell who was beside it. `RECORD_SDPA` is torch's attention with a mask that is always there.
It is registered under a name of our own, so that a model loaded elsewhere in the process keeps its usual attention.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

RECORD_SDPA = "tensafe_sdpa"
"""The name under which transformers finds it. It contains "sdpa", so transformers checks that torch offers sdpa."""


def _mask_always(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """transformers' `sdpa_mask` (bool [m, 1, L, L]) with both of its shortcuts closed."""
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **kwargs)


AttentionInterface.register(RECORD_SDPA, sdpa_attention_forward)
AttentionMaskInterface.register(RECORD_SDPA, _mask_always)


def use_record_attention(model: PreTrainedModel) -> str:
    """Choose an attention that treats padded and unpadded batches alike; returns its name.

    `RECORD_SDPA` where the model can take it, else `eager`: there a mask is added as numbers, and adding a mask of
    zeros changes no bit, so dropping it does no harm.
    """
    supported = model._supports_sdpa and model._supports_attention_backend
    name = RECORD_SDPA if supported else "eager"
    model.set_attn_implementation(name)
    return name
