"""Tiny random models of four families, and what several tests do with them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from tensafe_api.tasks import TASKS
from tensorguard.data.images import ImageRecipe
from tensorguard.data.rows import PixelRows, Rows, TokenRows
from tensorguard.models.batch_losses import LossFunction, record_loss
from tensorguard.models.dropout import record_seeds
from tensorguard.models.load import PRECISIONS, checkpoint_activations, prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.self_test import SelfTest, dummy_batches, self_test
from tensorguard.models.tasks import Task, task_named
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import Batch, PerExampleGradients

ROWS, LENGTH, WORDS = 4, 16, 97


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bert() -> PreTrainedModel:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(
        BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, num_labels=3, **size, **dropout)
    )


def bert_tags() -> PreTrainedModel:
    return BertForTokenClassification(bert().config)


def llama(**changes: Any) -> PreTrainedModel:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "num_key_value_heads": 2, **size, **changes}
    return LlamaForCausalLM(LlamaConfig(**settings))


def gpt2(**changes: Any) -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1)
    )


def vit() -> PreTrainedModel:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, num_labels=3, **size))


def image_recipe(side: int) -> ImageRecipe:
    """A recipe that maps the levels to -1 ... 1."""
    levels = np.tile(np.linspace(-1, 1, 256, dtype=np.float32), (3, 1))
    return ImageRecipe((side, side), resample=2, crop=None, levels=levels.tobytes())


MAKERS: dict[str, tuple[Callable[[], PreTrainedModel], str, list[str]]] = {
    "bert": (bert, "SequenceClassification", ["query", "value"]),
    "bert-tags": (bert_tags, "TokenClassification", ["query", "value"]),
    "llama": (llama, "CausalLM", ["q_proj", "v_proj", "down_proj"]),
    "vit": (vit, "ImageClassification", ["q_proj", "v_proj"]),
    "gpt2": (gpt2, "CausalLM", ["c_attn", "c_fc"]),
}


@dataclass
class Trained:
    """A tiny model with an adapter whose B is not zero, and its per-example gradients."""

    model: PeftModel
    task: Task
    gradients: PerExampleGradients

    def batch(self, seed: int) -> Batch:
        return dummy_batches(self.task, self.form, rows=ROWS, length=self.form.lengths[-1])(seed)

    @property
    def form(self) -> Rows:
        if self.task.name == "ImageClassification":
            return PixelRows(image_recipe(16), next(self.model.get_base_model().parameters()).dtype)
        return TokenRows(LENGTH, 0, WORDS)

    def self_test(self, make_batch: Callable[[int], Batch] | None = None) -> SelfTest:
        clipper = GridClipper(self.gradients.dimension, 1 << 18, 1.0, torch.device("cpu"))
        return self_test(self.model, self.gradients, clipper, make_batch or self.batch)

    def rows(self, batch: Batch, seeds: list[int] | None = None) -> torch.Tensor:
        """A copy of the gradients of all rows."""
        count = len(batch["labels"])
        with record_seeds(self.model, seeds or list(range(count))):
            return self.gradients.compute(batch, count).clone()


def move(model: torch.nn.Module, seed: int = 5) -> None:
    """Change every trainable parameter: LoRA starts at B = 0, where half of all gradients are 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in trainable_parameters(model):
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


@pytest.fixture
def trained() -> Iterator[Callable[..., Trained]]:
    made: list[PerExampleGradients] = []

    def make(
        kind: str,
        *,
        precision: str = "fp32",
        quantization: str | None = None,
        checkpointing: bool = False,
        loss: LossFunction | None = None,
        loss_scale: float = 1.0,
        **lora: Any,
    ) -> Trained:
        maker, name, targets = MAKERS[kind]
        task = task_named(name, labels=3 if TASKS[name].classes else 0)
        torch.manual_seed(0)
        base = prepare_base(
            maker().to(PRECISIONS[precision]),
            task,
            pad_token_id=0,
            quantization=quantization,
            modules_to_save=lora.get("modules_to_save", ()),
        )
        if checkpointing:
            checkpoint_activations(base.model)
        settings = {"rank": 4, "alpha": 8, "dropout": 0.0, "init_seed": 7, "target_modules": targets} | lora
        model = attach_lora(base, **settings)
        move(model)
        gradients = PerExampleGradients(
            model, trainable_parameters(model), loss or record_loss(task), loss_scale=loss_scale
        )
        made.append(gradients)
        return Trained(model, task, gradients)

    yield make
    for gradients in made:
        gradients.close()
