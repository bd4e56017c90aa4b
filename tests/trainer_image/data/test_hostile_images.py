"""Damaged and hostile image files cannot be used, cost little, and show nothing."""

from __future__ import annotations

import base64
import io
import struct
import subprocess
import sys
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from tensorguard.data.images import (
    MAX_COMPRESSED_CHUNKS,
    MAX_EXIF_SEGMENTS,
    MAX_SCANS,
    MAX_SIDE,
    ImageRecipe,
    decode,
)

from .image_files import AS_IS, LEVELS, SMALL, array, file_of, noise


def chunk(name: bytes, content: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def jpeg(segments: list[bytes]) -> bytes:
    """A JPEG file with these EXIF segments."""
    content = file_of(noise(), "JPEG")
    parts = (b"\xff\xe1" + struct.pack(">H", len(part) + 8) + b"Exif\0\0" + part for part in segments)
    return content[:2] + b"".join(parts) + content[2:]


def png(width: int, height: int, body: bytes) -> bytes:
    """A PNG file with this header, whatever its body holds."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(body)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_decompression_bomb_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: decoded.append(self))
    with warnings.catch_warnings(record=True) as shown:
        for width, height in (
            (9000, 9000),
            (12_000, 12_000),
            (60_000, 60_000),
            (2**31 - 1, 2),
            (MAX_SIDE + 1, 1),
            (1, MAX_SIDE + 1),
        ):
            assert decode(png(width, height, b"\0" * 1000), SMALL) is None
            bomb = bytearray(file_of(noise(), "BMP"))
            bomb[18:26] = struct.pack("<ii", width, height)
            assert decode(bytes(bomb), SMALL) is None
    assert not decoded and not shown


def test_thin_image_cannot_become_huge_when_it_is_resized() -> None:
    """One pixel wide and a million high: with a shorter edge of 224 it would have 50 billion pixels."""
    recipe = ImageRecipe(224, Image.Resampling.BILINEAR, (224, 224), LEVELS)
    assert decode(file_of(Image.new("L", (1, 1_000_000))), recipe) is None
    assert decode(file_of(Image.new("L", (1, 100))), recipe) is not None


def test_compressed_bmp_cannot_be_used() -> None:
    """Pillow decodes it pixel by pixel: seconds for a file of a few kilobytes."""
    content = bytearray(file_of(noise().convert("P"), "BMP"))
    assert decode(bytes(content), SMALL) is not None
    content[30:34] = struct.pack("<i", 1)
    rows = b"\x10\7\0\0" * 16  # in each: 16 pixels of the colour 7, end of the row
    compressed = bytes(content[: int.from_bytes(content[10:14], "little")]) + rows + b"\0\1"
    with Image.open(io.BytesIO(compressed)) as image:
        assert set(image.getdata()) == {7}
    assert decode(compressed, SMALL) is None


def test_jpeg_with_very_many_scans_cannot_be_used() -> None:
    content = file_of(noise(), "JPEG", progressive=True)
    assert 1 < content.count(b"\xff\xda") < MAX_SCANS and decode(content, SMALL) is not None
    assert decode(content + b"\xff\xda" * MAX_SCANS, SMALL) is None


def test_jpeg_with_very_many_exif_segments_cannot_be_used() -> None:
    """Pillow copies all earlier ones for each: 15 seconds for 8 MB."""
    assert decode(jpeg([b"ab"] * MAX_EXIF_SEGMENTS), SMALL) == decode(jpeg([]), SMALL) is not None
    assert decode(jpeg([b"ab"] * (MAX_EXIF_SEGMENTS + 1)), SMALL) is None


@pytest.mark.parametrize("part", [b"iCCP" + b"a\0\0", b"zTXt" + b"a\0\0", b"iTXt" + b"a\0\1\0\0\0"])
def test_png_with_very_many_compressed_chunks_cannot_be_used(part: bytes) -> None:
    """Pillow inflates up to 1 MiB for each kilobyte: 9 seconds for 2 MB."""
    content, packed = file_of(noise()), chunk(part[:4], part[4:] + zlib.compress(b"text"))
    few, many = (content[:33] + packed * count + content[33:] for count in (100, MAX_COMPRESSED_CHUNKS + 1))
    assert decode(few, SMALL) == decode(content, SMALL) is not None
    assert decode(many, SMALL) is None


def test_exif_data_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's `exif_transpose` takes 22 seconds for 8 MB of it in 60,000 tags."""
    exif = Image.Exif()
    exif[0x0112] = 6
    content = file_of(noise(), exif=exif)
    written: list[object] = []
    monkeypatch.setattr(Image.Exif, "tobytes", lambda self, *_: written.append(self) or b"")
    assert array(decode(content, AS_IS)).tolist() == np.rot90(np.asarray(noise()), k=-1).tolist() and not written


_LITTLE_MEMORY = """
import base64, resource, sys
from PIL import Image
from tensorguard.data.images import ImageRecipe, decode

content = base64.b64decode(sys.stdin.read())
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20),) * 2)
sys.exit(decode(content, ImageRecipe((8, 8), Image.Resampling.BILINEAR, None, b"")) is None)
"""


def test_exif_tags_that_share_their_data_take_little_memory() -> None:
    """Pillow 12 copies the data for each tag: 2 GB for 400 kB."""
    tags, size = 5000, 400_000
    entries = (struct.pack("<HHLL", 20_000 + i, 7, size - 100_000, 14 + 12 * tags) for i in range(tags))
    exif = b"II*\0" + struct.pack("<LH", 8, tags) + b"".join(entries) + b"\0" * 4
    exif += b"\0" * (size - len(exif))
    content = jpeg([exif[at : at + 60_000] for at in range(0, size, 60_000)])
    command = [sys.executable, "-c", _LITTLE_MEMORY]
    assert not subprocess.run(command, input=base64.b64encode(content), check=False, timeout=60).returncode


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "JPEG"])
def test_truncated_file_cannot_be_used_and_shows_nothing(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    content = file_of(noise(), kind)
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # as some libraries set it
    found = [decode(content[:length], SMALL) for length in range(0, int(0.9 * len(content)), 7)]
    assert set(found) == {None}
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@given(st.sampled_from(["PNG", "BMP", "GIF", "JPEG"]), st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_file_gives_the_same_result_each_time_and_never_raises(kind: str, data: st.DataObject) -> None:
    content = bytearray(file_of(noise(), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert decode(bytes(content), SMALL) == decode(bytes(content), SMALL)


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_an_image_or_none(content: bytes) -> None:
    for head in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM", b"GIF89a"):
        assert decode(head + content, SMALL) is None or len(decode(head + content, SMALL) or b"") == 192
