"""Attention whose kernel does not depend on the other records of the batch.

In: a loaded transformers model. Out: the same model, which now uses `RECORD_SDPA`. Then `lora` attaches the adapter.

The `sdpa` of transformers reads the padding mask of the whole batch and drops a mask that is all ones. So one padded
record decides for all others whether torch runs the masked or the unmasked kernel. In bf16 the two differ by 0.4 %: a
record's gradient would depend on the other records. `RECORD_SDPA` is torch's attention with a mask that is never
dropped. It has a name of its own, so a model that is loaded elsewhere in the process keeps its usual attention.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

RECORD_SDPA = "tensafe_sdpa"
"""Its name in transformers. The name contains "sdpa", so transformers checks that torch offers sdpa."""


def _mask_always(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """The `sdpa_mask` of transformers (bool [m, 1, L, L]), with both of its shortcuts off."""
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **kwargs)


AttentionInterface.register(RECORD_SDPA, sdpa_attention_forward)
AttentionMaskInterface.register(RECORD_SDPA, _mask_always)


def use_record_attention(model: PreTrainedModel) -> str:
    """Choose an attention that treats padded and unpadded batches in the same way. Returns its name.

    This is `RECORD_SDPA` if the model supports it, else `eager`. In `eager` a mask is added as numbers. A mask of zeros
    changes no bit, so it does no harm if it is dropped.
    """
    supported = model._supports_sdpa and model._supports_attention_backend
    name = RECORD_SDPA if supported else "eager"
    model.set_attn_implementation(name)
    return name
