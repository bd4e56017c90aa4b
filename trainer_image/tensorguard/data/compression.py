"""Compressed text files as streams: `.gz`, `.zst`, `.bz2` and `.xz` after the ending of the format.

In comes the handle of a compressed file; out goes a stream of its content, which cannot seek. Memory is bounded: each
codec decompresses a few kilobytes at a time and keeps only its window (gzip 32 KiB, zstd at most 128 MiB). A compressed
file is therefore one fragment: it cannot be split.

A truncated or corrupt archive raises `CorruptArchive`. An error of the file system passes through unchanged, so that
a lost connection is never reported as a corrupt archive.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import pyarrow as pa

BUFFER_BYTES = 1 << 20


class CorruptArchive(Exception):
    """A compressed file cannot be decompressed. The message names the fault, and holds nothing of the content."""


def compression_of(path: str) -> str | None:
    """The ending of a compressed file's name (".gz", ".zst", ...) in lower case; None for any other file."""
    ending = PurePosixPath(path).suffix.lower()
    return ending if ending in _DECOMPRESSORS else None


def is_zip(path: str) -> bool:
    """Whether a file's name says that it is a zip archive. These are refused: a zip archive can hold several files."""
    return PurePosixPath(path).suffix.lower() == ".zip"


def without_compression(path: str) -> str:
    """The name without the ending of a compression or archive: "notes.jsonl.gz" gives "notes.jsonl"."""
    return str(PurePosixPath(path).with_suffix("")) if compression_of(path) or is_zip(path) else path


@contextmanager
def decompressed(handle: BinaryIO, compression: str) -> Iterator[BinaryIO]:
    """The content of `handle` as a buffered stream that cannot seek.

    Reading raises CorruptArchive, or whatever `handle` raises.

    Args:
        handle: the compressed file.
        compression: the result of `compression_of`.
    """
    with io.BufferedReader(_Decompressed(handle, compression), BUFFER_BYTES) as stream:
        yield stream


class _Decompressed(io.RawIOBase):
    def __init__(self, handle: BinaryIO, compression: str) -> None:
        self._compressed = _Compressed(handle)
        self._compression = compression
        self._content = _DECOMPRESSORS[compression](self._compressed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._content.read(len(buffer))
        except Exception as error:
            if self._compressed.failed:
                raise
            raise CorruptArchive(_fault(error, self._compression)) from None
        buffer[: len(content)] = content
        return len(content)


class _Compressed(io.RawIOBase):
    """The compressed file; `failed`: whether the file system raised, rather than the codec."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.failed = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._handle.read(len(buffer))
        except Exception:
            self.failed = True
            raise
        buffer[: len(content)] = content
        return len(content)


def _fault(error: Exception, compression: str) -> str:
    """What is wrong with an archive. The codecs' own messages are not repeated: gzip's quotes the content."""
    if "too much memory" in str(error):  # zstd --long
        return f"its {compression} window is above 128 MiB; compress it without --long"
    truncated = isinstance(error, EOFError) or "Truncated" in str(error)
    return f"the {compression} archive is {'truncated' if truncated else 'corrupt'}; create the file again"


def _zstd(compressed: io.RawIOBase) -> Any:
    return pa.CompressedInputStream(pa.PythonFile(compressed, mode="r"), "zstd")


_DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda compressed: gzip.GzipFile(fileobj=compressed),
    ".zst": _zstd,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".lzma": lzma.LZMAFile,
}
