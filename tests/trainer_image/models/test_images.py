"""The recipe of a model's image processor gives the pixels and the values that the processor itself gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor, CLIPImageProcessorPil, DeiTImageProcessorPil, ViTImageProcessorPil

from tensorguard.data.images import pixels_of
from tensorguard.data.rows import PixelRows
from tensorguard.data.shard import Pixels, Shard, Target, records_table, units_table
from tensorguard.models.images import load_image_recipe
from tensorguard.models.source import ModelSource
from tensorguard.models.unsupported import UnsupportedModelError

Save = Callable[[Any], ModelSource]
SQUARE = {"height": 24, "width": 24}


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def save(processor: Any) -> ModelSource:
        processor.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
        return ModelSource("scans", str(tmp_path), None)

    return save


@pytest.mark.parametrize(
    "processor",
    [
        ViTImageProcessorPil(size={"height": 24, "width": 32}),
        ViTImageProcessorPil(size=SQUARE, resample=Image.Resampling.BICUBIC, do_normalize=False),
        ViTImageProcessorPil(size=SQUARE, do_rescale=False, do_normalize=False),
        CLIPImageProcessorPil(size={"shortest_edge": 27}, crop_size=SQUARE),
        DeiTImageProcessorPil(size={"height": 30, "width": 30}, crop_size=SQUARE),
    ],
    ids=["size", "bicubic", "levels", "shorter-edge-and-crop", "size-and-crop"],
)
def test_rows_of_a_batch_are_bit_for_bit_what_the_processor_gives(save: Save, processor: Any) -> None:
    source = save(processor)
    recipe = load_image_recipe(source)
    form = recipe.pixels
    images = [
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))
        for seed, size in enumerate([(24, 24), (61, 45), (30, 200)])
    ]
    stored = Pixels(form.height, form.width)
    pixels = [pixels_of(image, recipe) for image in images]
    shard = Shard(units_table(records_table(pixels, [0, 1, 2], Target.RECORD_LABEL, stored), np.arange(3), stored))
    rows = PixelRows(recipe).build(shard, [0, 1, 2], 4, 1)["pixel_values"].numpy()
    used = AutoImageProcessor.from_pretrained(source.location, backend="pil")
    for row, image in zip(rows, images):
        wanted = np.asarray(used(image, return_tensors="np")["pixel_values"][0], np.float32)
        assert row.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (
            ViTImageProcessorPil(size={"shortest_edge": 24}),
            "spec.model.name: with the image processor of 'scans' images differ in size: crop them, or resize them to "
            "a height and a width in its preprocessor_config.json.",
        ),
        (ViTImageProcessorPil(size=SQUARE, do_resize=False), "images differ in size"),
        (
            ViTImageProcessorPil(size=SQUARE, do_pad=True, pad_size={"height": 32, "width": 32}),
            "spec.model.name: the image processor of 'scans' does more than resize, crop and normalise images: choose "
            "another model.",
        ),
    ],
    ids=["differing sizes", "no resizing", "padding"],
)
def test_processor_that_the_recipe_cannot_follow_is_refused(save: Save, processor: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        load_image_recipe(save(processor))
    assert message in str(refusal.value)


def test_model_without_an_image_processor_is_refused(save: Save, tmp_path: Path) -> None:
    source = save(ViTImageProcessorPil())
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UnsupportedModelError, match="'scans' cannot be loaded"):
        load_image_recipe(source)
