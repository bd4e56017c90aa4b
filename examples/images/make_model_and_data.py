"""Makes the model and the data of the images example: a small vision transformer, and images of textures.

In: a seed. Out: ``model/`` (about 120,000 weights, pretrained on public images, with its image processor),
``data/train.parquet`` (the private set) and ``data/eval.parquet`` (a public set). ``job.yaml`` beside this file
fine-tunes the model on the data.

An image has 32 x 32 pixels, as those of CIFAR, and shows one of four textures in invented colours. The public images
for pretraining show three of them, and their classes are the textures' scales: the model learns the textures
themselves, and a fourth one, privately. The same seed writes the same records.
"""

from __future__ import annotations

import argparse
import io
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

TEXTURES = ("stripes", "checks", "rings", "clouds")
"""The order is that of `model.labelNames` in job.yaml."""
SCALES = (0.45, 0.9, 1.5)
"""Radians for each pixel."""
SIDE = 32
PUBLIC_IMAGES = 2000
PRIVATE_IMAGES, EVALUATION_IMAGES = 3200, 320
PRETRAINING_STEPS, PRETRAINING_BATCH = 150, 64


def draw(random: np.random.Generator, texture: str, scale: float) -> np.ndarray:
    """An image, uint8 [32, 32, 3]."""
    y, x = np.mgrid[:SIDE, :SIDE].astype(float)
    angle, shift = random.uniform(0, np.pi), random.uniform(0, 2 * np.pi, 2)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    match texture:
        case "stripes":
            wave = np.sin(scale * along + shift[0])
        case "checks":
            wave = np.sign(np.sin(scale * along + shift[0]) * np.sin(scale * across + shift[1]))
        case "rings":
            middle = random.uniform(8, 24, 2)
            wave = np.sin(1.4 * scale * np.hypot(x - middle[0], y - middle[1]) + shift[0])
        case _:
            coarse = Image.fromarray(random.uniform(-1, 1, (5, 5)).astype(np.float32))
            wave = 2 * np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=float)
    dark, light = random.uniform(0, 110, 3), random.uniform(130, 255, 3)
    colours = dark + (light - dark) * (wave[..., None] + 1) / 2
    return np.clip(colours + random.normal(0, 12, colours.shape), 0, 255).astype(np.uint8)


def images(count: int, seed: int) -> list[dict[str, bytes | str]]:
    """``count`` records: ``image``, the content of a PNG file, and ``label``, the name of its texture."""
    random = np.random.default_rng(seed)
    found: list[dict[str, bytes | str]] = []
    for _ in range(count):
        texture = TEXTURES[random.integers(len(TEXTURES))]
        file = io.BytesIO()
        Image.fromarray(draw(random, texture, random.choice(SCALES))).save(file, "PNG")
        found.append({"image": file.getvalue(), "label": texture})
    return found


def make_model(seed: int) -> ViTForImageClassification:
    """A model with one class for each texture and scale of the public images."""
    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=SIDE,
        patch_size=8,
        num_labels=len(SCALES) * 3,
    )
    return ViTForImageClassification(config)


def pretrain(model: ViTForImageClassification, processor: ViTImageProcessorPil, seed: int) -> float:
    """Ordinary training on public images. Returns the loss of the last step (nats)."""
    random = np.random.default_rng(seed)
    classes = random.integers(len(SCALES) * 3, size=PUBLIC_IMAGES)
    drawn = [draw(random, TEXTURES[number // len(SCALES)], SCALES[number % len(SCALES)]) for number in classes]
    pixels, labels = processor(drawn, return_tensors="pt")["pixel_values"], torch.from_numpy(classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(PRETRAINING_STEPS):
        chosen = torch.randint(PUBLIC_IMAGES, (PRETRAINING_BATCH,))
        loss = model(pixel_values=pixels[chosen], labels=labels[chosen]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def write_parquet(path: Path, records: Sequence[dict[str, bytes | str]]) -> None:
    """Write the records. The file is renamed once it is complete."""
    temporary = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(list(records)), temporary)
    temporary.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: ``make_model_and_data.py [--seed S] [--out DIRECTORY]``. An existing model is kept."""
    parser = argparse.ArgumentParser(description="Make the images example's model and data.")
    parser.add_argument("--seed", type=int, default=7, help="same seed, same data (default 7)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="directory for model/ and data/")
    options = parser.parse_args(arguments)

    data, model_directory = options.out / "data", options.out / "model"
    data.mkdir(parents=True, exist_ok=True)
    write_parquet(data / "train.parquet", images(PRIVATE_IMAGES, options.seed))
    write_parquet(data / "eval.parquet", images(EVALUATION_IMAGES, options.seed + 1))
    print(f"wrote {PRIVATE_IMAGES} training and {EVALUATION_IMAGES} evaluation images to {data}")
    if (model_directory / "config.json").exists():
        print(f"kept the model in {model_directory}; remove the directory to recreate it")
        return

    model, processor = make_model(options.seed), ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    loss = pretrain(model, processor, options.seed + 2)
    partial = options.out / "model.part"
    shutil.rmtree(partial, ignore_errors=True)
    processor.save_pretrained(partial)
    model.save_pretrained(partial)
    partial.rename(model_directory)
    print(
        f"wrote a model of {model.num_parameters():,} weights to {model_directory} (loss on public images {loss:.2f})"
    )


if __name__ == "__main__":
    main()
