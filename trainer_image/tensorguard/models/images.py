"""Reads from a model's files how it wants images: the size, the filter, and the values of the levels.

In: a `ModelSource`. Out: an `ImageRecipe`, with which processes decode images that load neither torch nor transformers.

The recipe is not trusted to be complete. The model's own image processor and the recipe make pixels of public images of
several shapes, and the model is refused unless all of them are equal. So the model is trained on what its users will
give to it. `backend="pil"` is the processor whose pixels do not depend on whether torchvision is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoImageProcessor

from tensorguard.data.images import ImageRecipe, pixels_of
from tensorguard.models.source import ModelSource
from tensorguard.models.tokenizer import read_pretrained
from tensorguard.models.unsupported import UnsupportedModelError

_SHAPES = ((48, 48), (37, 90), (301, 22), (640, 480))
"""Height and width of the public images on which recipe and processor are compared."""
_PIXELS_ONLY = {"do_rescale": False, "do_normalize": False}


def load_image_recipe(source: ModelSource, *, trust_remote_code: bool = False) -> ImageRecipe:
    """The recipe of the model's image processor.

    Raises:
        UnsupportedModelError: there is no image processor, images would differ in size, or the processor does more than
            resizing, cropping and normalising.
    """
    processor = read_pretrained(AutoImageProcessor, source, trust_remote_code, backend="pil")
    recipe = _recipe(processor)
    try:
        form = recipe.pixels
    except ValueError as error:
        raise UnsupportedModelError(
            f"spec.model.name: with the image processor of '{source.name}' {error} in its preprocessor_config.json."
        ) from None
    for shape in _SHAPES:
        image = _noise(*shape)
        wanted = np.asarray(processor(image, return_tensors="np", **_PIXELS_ONLY)["pixel_values"][0])
        if wanted.shape != (3, form.height, form.width) or wanted.tobytes() != pixels_of(image, recipe):
            raise UnsupportedModelError(
                f"spec.model.name: the image processor of '{source.name}' does more than resize, crop and normalise "
                "images: choose another model."
            )
    return recipe


def _recipe(processor: Any) -> ImageRecipe:
    return ImageRecipe(
        resize=_size(processor.size) if processor.do_resize else None,
        resample=int(Image.Resampling.BILINEAR if processor.resample is None else processor.resample),
        crop=_height_and_width(processor.crop_size) if getattr(processor, "do_center_crop", None) else None,
        levels=_levels(processor),
    )


def _size(size: Any) -> tuple[int, int] | int | None:
    return _height_and_width(size) or getattr(size, "shortest_edge", None)


def _height_and_width(size: Any) -> tuple[int, int] | None:
    height, width = getattr(size, "height", None), getattr(size, "width", None)
    return (height, width) if height and width else None


def _levels(processor: Any) -> bytes:
    """What the processor gives for each level of each channel, float32 [3, 256] as bytes."""
    square = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = Image.fromarray(np.stack([square] * 3, axis=-1))
    values = processor(image, do_resize=False, do_center_crop=False, do_pad=False, return_tensors="np")["pixel_values"]
    return np.asarray(values, dtype=np.float32).reshape(3, 256).tobytes()


def _noise(height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
