"""Jobs that classify images, for `rank_harness`: a tiny vision transformer, and images that a few steps can learn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from tests.support.trainer.rank_harness import MANIFEST, JobKind

IMAGE_MANIFEST = (
    MANIFEST.replace("task: SequenceClassification, numLabels: 2", "task: ImageClassification, numLabels: 3")
    .replace("{text: text, label: label}", "{image: image, label: label}")
    .replace("{rank: 2, targetModules: [query, value]}", "{rank: 2}")
    .replace("maxLength: 16, ", "")
)


def make_image_model(directory: Path) -> None:
    """Write a vision transformer of a few thousand weights for 32 x 32 pixels, and its image processor."""
    config = ViTConfig(  # type: ignore[call-arg]  # num_labels is a property with a setter
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ViTForImageClassification(config).save_pretrained(directory)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(directory)


def images(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Noisy images of 32 x 32 pixels as PNG files. The label is the channel that is brightest on average."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        pixels, label = generator.integers(0, 180, (32, 32, 3)), int(generator.integers(3))
        pixels[..., label] += 60
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
        found.append({"image": file.getvalue(), "label": label})
    return found


IMAGES = JobKind(IMAGE_MANIFEST, make_image_model, images)
