"""Images and recipes for the tests of images."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from tensorguard.data.images import ImageRecipe

LEVELS = np.tile(np.linspace(-1, 1, 256, dtype=np.float32), (3, 1)).tobytes()
SMALL = ImageRecipe((8, 8), Image.Resampling.BILINEAR, None, LEVELS)
AS_IS = ImageRecipe((16, 16), Image.Resampling.NEAREST, None, LEVELS)


def noise(seed: int = 0, size: tuple[int, int] = (16, 16)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def array(pixels: bytes | None, side: int = 16) -> np.ndarray:
    """Pixels as `decode` returns them, uint8 [side, side, 3]."""
    assert pixels is not None
    return np.frombuffer(pixels, np.uint8).reshape(3, side, side).transpose(1, 2, 0)
