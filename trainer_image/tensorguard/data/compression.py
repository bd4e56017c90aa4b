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
from itertools import takewhile
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


def compression_in(content: bytes) -> str | None:
    """The ending that belongs to content which starts like an archive; None for any other content."""
    return next((ending for ending, magic in _MAGIC.items() if content.startswith(magic)), None)


def unsupported_archive(path: str) -> str | None:
    """The ending of an archive that cannot be read (".zip", ".lz4"), also below a compression (".tar" of ".tar.gz").

    None for any other file.
    """
    return next((ending for ending in _archive_endings(path) if ending in _UNSUPPORTED), None)


def without_compression(path: str) -> str:
    """The name without the endings of compressions and archives: "notes.jsonl.gz" gives "notes.jsonl"."""
    return path[: len(path) - sum(map(len, _archive_endings(path)))]


def _archive_endings(path: str) -> list[str]:
    """The endings of compressions and archives in lower case, the last one first."""
    endings = (ending.lower() for ending in reversed(PurePosixPath(path).suffixes))
    return list(takewhile(lambda ending: ending in _DECOMPRESSORS or ending in _UNSUPPORTED, endings))


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


class _Streams:
    """The content of all streams of a bz2 or xz file.

    `BZ2File` and `LZMAFile` ignore what follows the first stream if it is not another one: the rows of a damaged second
    stream would be missing without an error.
    """

    def __init__(self, compressed: io.RawIOBase, decompressor: Callable[[], Any]) -> None:
        self._pieces = filter(None, _pieces(compressed, decompressor))
        self._piece = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        self._piece = self._piece or next(self._pieces, b"")
        content, self._piece = self._piece[:size], self._piece[size:]
        return content


def _pieces(compressed: io.RawIOBase, decompressor: Callable[[], Any]) -> Iterator[bytes]:
    data = compressed.read(BUFFER_BYTES)
    while data:
        data = data.lstrip(b"\0")  # An xz file may have zeros between its streams.
        if data:
            stream = decompressor()
            while not stream.eof:
                yield stream.decompress(data, BUFFER_BYTES)
                data = b""
                if stream.needs_input:
                    data = compressed.read(BUFFER_BYTES)
                    if not data:
                        raise EOFError
            data = stream.unused_data
        data = data or compressed.read(BUFFER_BYTES)


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
    ".bz2": lambda compressed: _Streams(compressed, bz2.BZ2Decompressor),
    ".xz": lambda compressed: _Streams(compressed, lzma.LZMADecompressor),
    ".lzma": lambda compressed: _Streams(compressed, lzma.LZMADecompressor),
}
_DECOMPRESSORS |= {
    alias: _DECOMPRESSORS[ending] for alias, ending in ((".gzip", ".gz"), (".zstd", ".zst"), (".bzip2", ".bz2"))
}
_MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\0"}
MAGIC_BYTES = max(map(len, _MAGIC.values()))
_UNSUPPORTED = frozenset({".7z", ".br", ".lz", ".lz4", ".lzo", ".rar", ".snappy", ".sz", ".tar", ".tgz", ".z", ".zip"})
"""Endings of archives that are refused by name. Some of them can hold several files."""
