"""Decoders of Llama's shape with random weights: the causal models of all benchmarks, made without a download.

The numbers of a config come in. A model of transformers goes out. Time and memory of a step do not depend on the
weights' values.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def llama(
    *,
    words: int,
    positions: int,
    width: int,
    inner_width: int,
    layers: int,
    heads: int,
    key_value_heads: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    tied: bool = False,
    pad_token: int | None = None,
    end_token: int | None = None,
) -> LlamaForCausalLM:
    """A model whose weights are the same in each call with the same arguments. Seeds the global generator.

    Args:
        words: size of the vocabulary.
        positions: largest number of tokens in a record.
        inner_width: of each layer between two attentions.
        key_value_heads: as many as `heads` if absent.
        dtype: of the weights.
        device: where the weights are made and stay.
        tied: whether the output layer shares its weights with the embeddings.
    """
    config = LlamaConfig(
        vocab_size=words,
        max_position_embeddings=positions,
        hidden_size=width,
        intermediate_size=inner_width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads if key_value_heads is None else key_value_heads,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=end_token,
        pad_token_id=pad_token,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(0)
        with torch.device(device):
            return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
