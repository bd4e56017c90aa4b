"""The number of tokens for which models have positions, compared with passes of these models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    BloomConfig,
    CTRLConfig,
    EsmConfig,
    GPT2Config,
    IBertConfig,
    LongformerConfig,
    MPNetConfig,
    MptConfig,
    OPTConfig,
    PreTrainedConfig,
    RobertaConfig,
    XLNetConfig,
)

from tensafe_api.reasons import Reason
from tensorguard.models.positions import TooManyTokensError, check_length, count_positions

ROWS, WORDS = 20, 30
BERT: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "max_position_embeddings": ROWS,
    "pad_token_id": 1,
}
LIMITED: dict[str, tuple[PreTrainedConfig, int]] = {
    "BERT": (BertConfig(**BERT), ROWS),
    "GPT-2": (GPT2Config(vocab_size=WORDS, n_positions=ROWS, n_embd=8, n_layer=1, n_head=1), ROWS),
    "CTRL": (CTRLConfig(vocab_size=WORDS, n_positions=ROWS, n_embd=8, dff=8, n_layer=1, n_head=1), ROWS),
    "OPT": (OPTConfig(**{**BERT, "ffn_dim": 8, "word_embed_proj_dim": 8}), ROWS),
    "MPT": (MptConfig(vocab_size=WORDS, d_model=8, n_heads=1, n_layers=1, max_seq_len=ROWS), ROWS),
    "RoBERTa": (RobertaConfig(**BERT), ROWS - 2),
    "RoBERTa with another padding": (RobertaConfig(**{**BERT, "pad_token_id": 5}), ROWS - 6),
    "RoBERTa with as many words": (RobertaConfig(**{**BERT, "vocab_size": ROWS}), ROWS - 2),
    "MPNet": (MPNetConfig(**BERT), ROWS - 2),
    "ESM": (EsmConfig(**BERT, position_embedding_type="absolute"), ROWS - 2),
    "I-BERT": (IBertConfig(**BERT), ROWS - 2),
    "Longformer": (LongformerConfig(**BERT, attention_window=4), ROWS - 2),
}


@pytest.mark.parametrize("name", LIMITED)
def test_number_of_positions_is_the_longest_record_that_the_model_reads(name: str) -> None:
    config, positions = LIMITED[name]
    model: Any = AutoModel.from_config(config, attn_implementation="eager").eval()
    assert count_positions(model) == positions

    def run(length: int) -> None:
        with torch.no_grad():
            model(torch.full((1, length), WORDS // 2 - 3), attention_mask=torch.ones(1, length))

    run(positions)
    with pytest.raises((IndexError, RuntimeError)):
        run(positions + 1)


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=WORDS, hidden_size=8, n_layer=1, n_head=1),
        XLNetConfig(vocab_size=WORDS, d_model=8, n_layer=1, n_head=1, d_inner=8),
    ],
    ids=lambda config: str(config.model_type),
)
def test_model_with_relative_positions_has_no_limit(config: PreTrainedConfig) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert count_positions(model) is None
    check_length(model, "relative", 10**6)


def test_longer_records_are_refused_by_the_field() -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(RobertaConfig(**BERT))
    check_length(model, "team/roberta", ROWS - 2)
    sentence = r"^spec\.training\.maxLength: 20 is more than the 18 positions of team/roberta; lower it$"
    with pytest.raises(TooManyTokensError, match=sentence) as refused:
        check_length(model, "team/roberta", ROWS)
    assert refused.value.reason is Reason.INVALID_MANIFEST
