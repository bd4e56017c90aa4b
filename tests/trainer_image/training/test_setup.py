"""Checks of the model before the first step, and how a job ends that fails one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, OPTConfig, OPTForSequenceClassification

from tensorguard.data.images import ImageRecipe
from tensorguard.data.rows import PixelRows
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.setup import _check_image_size, _check_vocabulary
from tests.support.trainer.rank_harness import MANIFEST, Job, JobKind, make_tokenizer, records


def test_tokenizer_with_tokens_unknown_to_the_model_is_refused(tmp_path: Any) -> None:
    """A record with such a token would end the job, which would reveal that the data has such a record."""
    job = Job.make(tmp_path / "run").job
    model: Any = SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(44, 2))
    _check_vocabulary(job, model, 43)
    with pytest.raises(AttemptFailed, match=r"spec\.model\.name: the tokenizer of .* tokens up to number 44"):
        _check_vocabulary(job, model, 44)


def image_model(**config: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(**config))


@pytest.mark.parametrize("config", [{}, {"image_size": 32}, {"image_size": [32, 32], "num_channels": 3}])
def test_model_that_reads_what_its_image_processor_makes_is_accepted(config: dict[str, Any], tmp_path: Any) -> None:
    _check_image_size(Job.make(tmp_path / "run").job, image_model(**config), pixels(32, 32))


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"image_size": 30}, "images of 30 x 30 pixels in 3 channels, but its image processor makes 32 x 32 pixels"),
        ({"image_size": (32, 30)}, "images of 32 x 30 pixels in 3 channels"),
        ({"num_channels": 1}, "images of 32 x 32 pixels in 1 channels"),
    ],
)
def test_model_of_other_images_than_its_image_processor_makes_is_refused(
    config: dict[str, Any], found: str, tmp_path: Any
) -> None:
    with pytest.raises(AttemptFailed, match=f"reads {found}"):
        _check_image_size(Job.make(tmp_path / "run").job, image_model(**config), pixels(32, 32))


def test_size_of_images_is_height_by_width(tmp_path: Any) -> None:
    _check_image_size(Job.make(tmp_path / "run").job, image_model(image_size=(16, 32)), pixels(16, 32))


def pixels(height: int, width: int) -> PixelRows:
    levels = np.zeros((3, 256), dtype=np.float32)
    return PixelRows(ImageRecipe((height, width), resample=2, crop=None, levels=levels.tobytes()))


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}


def make_decoder_with_cross_attention(directory: Path) -> None:
    """Write a BERT whose cross-attention has nothing to read, so that it takes no part in the loss."""
    words = make_tokenizer(directory)
    config = BertConfig(vocab_size=words, intermediate_size=64, is_decoder=True, add_cross_attention=True, **SMALL)
    BertForSequenceClassification(config).save_pretrained(directory)


def make_opt(directory: Path) -> None:
    """Write an OPT, which flattens records and tokens before `fc1`."""
    words = make_tokenizer(directory)
    OPTForSequenceClassification(
        OPTConfig(vocab_size=words, ffn_dim=64, word_embed_proj_dim=32, **SMALL)
    ).save_pretrained(directory)


@pytest.mark.parametrize(
    ("make_model", "layer", "dropout", "problem"),
    [
        (make_decoder_with_cross_attention, "crossattention.self.query", "0", "takes no part in the loss"),
        (make_opt, "fc1", "0", "cannot be separated by record"),
        (make_opt, "fc1", "0.1", "cannot be separated by record"),
    ],
    ids=["unused", "flattened", "flattened with dropout"],
)
def test_job_with_a_layer_without_a_gradient_for_each_record_names_the_field(
    tmp_path: Path, make_model: Any, layer: str, dropout: str, problem: str
) -> None:
    overrides = (f"spec.lora.targetModules=[{layer}]", f"spec.lora.dropout={dropout}", "spec.cluster.workers=1")
    job = Job.make(tmp_path / "run", *overrides, kind=JobKind(MANIFEST, make_model, records))
    job.train_alone()
    ended = job.ended()
    assert ended.reason == "ModelUnsupported", ended.message
    assert ended.message.startswith("spec.lora: ")
    assert problem in ended.message
    assert "leave it out of spec.lora.targetModules" in ended.message
    assert job.ledger().steps_charged == 0
