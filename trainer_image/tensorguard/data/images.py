"""From the content of an image file to pixels of the size that a model reads.

In comes the value of an image column: the bytes of a file, an object with a field `bytes` (as Hugging Face's `datasets`
writes images), base64 text, or an image in memory. Out come `Pixels`, uint8 [3, height, width] in RGB, or None for a
value that cannot be used. A path in a record is never followed: the author of a record could read the files of a
worker.

Image files come from many hands, so decoding has limits that the file's header decides before any pixel is decoded:
four formats with small decoders, and a number of pixels. Parts of a file that can cost far more than their bytes have
limits as well (`_PARTS`): each scan of a JPEG file costs the time of a whole image. A BMP file must not be compressed.
An animation counts as its first image. What Pillow warns of is not shown, because it can quote the file.

The result is a function of the value and of the model's `ImageRecipe` alone. No value makes these functions raise.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageFile

from tensorguard.data.shard import Pixels

FORMATS = ("PNG", "JPEG", "BMP", "GIF")
"""Pillow's names of the formats that are decoded. Others have large decoders, and are not needed: convert them."""
MAX_PIXELS = 1 << 26
"""Pixels of an image, before and after resizing: 67 million. Decoding one of this size takes up to 800 MB."""
MAX_SIDE = 1 << 15
"""The longest side of an image in pixels. Resizing needs memory for the longer side of a thin image."""
MAX_SCANS = 100
"""Scans of a JPEG file. Progressive files have about ten."""
MAX_EXIF_SEGMENTS = 100
"""EXIF segments of a JPEG file. Photos have one or a few, and Pillow copies all earlier ones for each."""
MAX_COMPRESSED_CHUNKS = 100
"""Colour profiles of a PNG file, and its compressed or international texts: of each, Pillow inflates up to 1 MiB."""
_PARTS = (
    (b"\xff\xd8", b"\xff\xda", MAX_SCANS),
    (b"\xff\xd8", b"Exif\0\0", MAX_EXIF_SEGMENTS),
    *((b"\x89PNG", chunk, MAX_COMPRESSED_CHUNKS) for chunk in (b"iCCP", b"zTXt", b"iTXt")),
)
"""How a file of a format begins, how a part of it begins, and the limit of such parts."""
_BMP_COMPRESSION, _RUN_LENGTHS = slice(30, 34), (b"\1\0\0\0", b"\2\0\0\0")
"""Where a BMP file states its compression, and the ones that Pillow decodes pixel by pixel in Python."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image upright, by its EXIF orientation. 1 is upright."""
_DEEP = "I;16"
"""How the names of Pillow's modes with 16 bits begin."""


@dataclass(frozen=True)
class ImageRecipe:
    """How a model's image processor makes pixels of an image in RGB.

    Attributes:
        resize: (height, width), or the length of the shorter edge; None: no resizing.
        resample: Pillow's number of the filter.
        crop: (height, width) that are cut out of the centre; None: no cropping.
        levels: float32 [3, 256] as bytes: what the model reads for each channel and each of the 256 levels.
    """

    resize: tuple[int, int] | int | None
    resample: int
    crop: tuple[int, int] | None
    levels: bytes

    @property
    def pixels(self) -> Pixels:
        """The form of the result. Raises ValueError if it depends on the image."""
        size = self.crop or self.resize
        if not isinstance(size, tuple):
            raise ValueError("images differ in size: crop them, or resize them to a height and a width")
        return Pixels(*size)

    @property
    def table(self) -> np.ndarray:
        """`levels` as an array, float32 [3, 256]."""
        return np.frombuffer(self.levels, np.float32).reshape(3, 256)


def image_file(value: Any) -> bytes | None:
    """The bytes of the image file in a column's value; None if there are none."""
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, bytes | bytearray):
        return bytes(value) or None
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode("".join(value.split()), validate=True) or None
    except ValueError:
        return None


def decode(content: bytes, recipe: ImageRecipe) -> bytes | None:
    """The pixels of an image file (`recipe.pixels`); None if it is not an image, too large, or damaged."""
    if any(content.startswith(head) and content.count(part) > limit for head, part, limit in _PARTS):
        return None
    if content.startswith(b"BM") and content[_BMP_COMPRESSION] in _RUN_LENGTHS:
        return None
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # it is global, and other libraries change it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if _too_large(*image.size):
                    return None
                image.load()
                return pixels_of(_rgb(_upright(image)), recipe)
        except Exception:  # damaged files make Pillow raise almost anything
            return None


def pixels_of(image: Image.Image, recipe: ImageRecipe) -> bytes | None:
    """The pixels of an image in mode RGB; None if it would be too large when it is resized."""
    width, height = image.size
    if recipe.resize is not None:
        height, width = _resized(height, width, recipe.resize)
        if _too_large(width, height):
            return None
        image = image.resize((width, height), Image.Resampling(recipe.resample))
    if recipe.crop is not None:
        top, left = (height - recipe.crop[0]) // 2, (width - recipe.crop[1]) // 2
        image = image.crop((left, top, left + recipe.crop[1], top + recipe.crop[0]))
    return np.asarray(image).transpose(2, 0, 1).tobytes()


def _resized(height: int, width: int, size: tuple[int, int] | int) -> tuple[int, int]:
    if isinstance(size, tuple):
        return size
    longer = int(size * max(height, width) / min(height, width))
    return (longer, size) if height >= width else (size, longer)


def _too_large(width: int, height: int) -> bool:
    return width * height > MAX_PIXELS or max(width, height) > MAX_SIDE


def _upright(image: Image.Image) -> Image.Image:
    """The image as its EXIF orientation shows it. Damaged EXIF data has no effect.

    Pillow's own function also writes the EXIF data again, in time that grows with the square of its length.
    """
    try:
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return image
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    """The image in RGB. Of 16 bits the upper 8 are kept: Pillow's own conversion makes all but the darkest white."""
    if image.mode.startswith(_DEEP):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def png_of(value: Any) -> bytes | None:
    """A PIL image, or an array uint8 [height, width] or [height, width, 1, 3 or 4], as a PNG file, which loses nothing.

    None for any other value.
    """
    try:
        if not isinstance(value, Image.Image):
            array = np.asarray(value)
            if array.dtype != np.uint8:
                return None
            value = Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)
        upright = _upright(value)
        if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
            upright = _rgb(upright)
        file = io.BytesIO()
        upright.save(file, "PNG", compress_level=1)
        return file.getvalue()
    except Exception:
        return None
