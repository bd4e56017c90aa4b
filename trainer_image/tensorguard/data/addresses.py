"""Which files an address names: those that are read, and those that are left out, with the reason.

In comes the URI of a file, a folder or a pattern; out comes a `Listing`. Each record must count once. So a file with
several names is read once, and two files that look like one are refused if their content differs. The names of files
are public (see the threat model).
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from tensorguard.data.compression import BUFFER_BYTES, CorruptArchive, compression_of, decompressed
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.formats import format_of
from tensorguard.data.lake_tables import is_metadata, table_of

NO_ENDING = "no known ending"
NO_FILE = "not a file, or a broken link"
FOLDER = "a folder"
EMPTY = "empty"
HIDDEN = "hidden"
MAX_NAMES = 10
"""A sentence names at most this many files that are left out."""


@dataclass(frozen=True)
class Listing:
    """The files at an address. Paths are as the file system writes them.

    Attributes:
        base: the folder of the address: a folder itself, that of a file, or that above the first wildcard of a pattern.
        files: those to read, in a fixed order, with their sizes in bytes.
        left_out: the others with the reason, in the order in which a user should see them. A hidden folder is one name.
        whole: whether these are all names below `base`, because the address is a folder.
    """

    base: str
    files: Mapping[str, int]
    left_out: Mapping[str, str]
    whole: bool = False

    def left_out_text(self) -> str:
        """The names that are left out with the reasons, as "a.jl, b.jl (no known ending); c.csv (empty)"."""
        first = islice(self.left_out.items(), MAX_NAMES)
        texts = [
            f"{', '.join(_shown(path, self.base) for path, _ in names)} ({why})"
            for why, names in groupby(first, key=lambda item: item[1])
        ]
        more = len(self.left_out) - MAX_NAMES
        return "; ".join([*texts, *([f"and {more} more"] if more > 0 else [])])

    def sentence(self, uri: str, format: str) -> str:  # noqa: A002
        """How many files are read, and what is left out."""
        files = f"{len(self.files):,} {format} file{'' if len(self.files) == 1 else 's'} at {uri}"
        return f"Reading {files}; left out: {self.left_out_text()}" if self.left_out else f"Reading {files}"


def list_files(filesystem: Any, uri: str, format: str | None) -> Listing:  # noqa: A002
    """The files at a URI, each content once.

    A file with several names is in `files` by its first name that is not that of a compressed file. Otherwise each of
    its records would count twice.

    Raises:
        DataError: a link to a folder, a table of Delta, Hudi or Iceberg, or two files of one name that differ.
        Exception: whatever the file system raises.
    """
    found = named_files(filesystem, uri, format)
    _refuse_tables(filesystem, found, format)
    kept, copies = _without_copies(filesystem, found)
    return Listing(found.base, kept, _in_order({**found.left_out, **copies}), found.whole)


def named_files(filesystem: Any, uri: str, format: str | None) -> Listing:  # noqa: A002
    """The files at a URI by all their names, except for those that no job reads: empty ones, and in a folder hidden
    ones and those without a known ending. Raises as `list_files`, though neither for tables nor for files that differ.
    """
    path = filesystem._strip_protocol(uri)
    whole = False
    if _has_wildcard(path) and not filesystem.exists(path):
        base = _fixed_folder(filesystem, path)
        pattern = path[len(base) :]
        if _has_wildcard(pattern.rpartition("/")[0]) or "**" in pattern:
            _refuse_linked_folders(filesystem, base or "/")
        found = filesystem.glob(glob.escape(base) + pattern, detail=True)
        above = {
            str(folder) for name, info in found.items() if _is_file(info) for folder in PurePosixPath(name).parents
        }
        found = {name: info for name, info in found.items() if name not in above}
    elif filesystem.isdir(path):
        base, whole = path, True
        _refuse_linked_folders(filesystem, path)
        found = filesystem.find(path, detail=True)
    else:
        info = filesystem.info(path)
        base, found = info["name"].rpartition("/")[0], {info["name"]: info}
    files, left_out = {}, {}
    for name in sorted(found):
        if name.endswith("/") and not found[name]["size"]:  # an object that only marks a folder
            continue
        if whole and (hidden := _hidden_part(name, base)):
            left_out[hidden] = HIDDEN
        elif not _is_file(info := found[name]):
            left_out[name] = FOLDER if _is_folder(info) else NO_FILE
        elif whole and not format and not format_of(name):
            left_out[name] = NO_ENDING
        elif not info["size"]:
            left_out[name] = EMPTY
        else:
            files[name] = info["size"]
    return Listing(base, files, _in_order(left_out), whole)


def identities(filesystem: Any, path: str) -> list[str]:
    """What identifies a file: its name without the ending of a compression, since `a.jsonl` beside `a.jsonl.gz` is the
    same file; on a disk, where links give a file more names, also its device and inode.
    """
    name = path.removesuffix(PurePosixPath(path).suffix) if compression_of(path) else path
    if not isinstance(filesystem, LocalFileSystem):
        return [name]
    stat = os.stat(path)  # noqa: PTH116
    return [name, f"{stat.st_dev}/{stat.st_ino}"]


def _refuse_tables(filesystem: Any, found: Listing, format: str | None) -> None:  # noqa: A002
    def may_be_of_a_table(path: str) -> bool:
        known = format_of(path)
        return is_metadata(path) or (format or (known and known.name)) == "parquet"

    paths = list(filter(may_be_of_a_table, found.files))
    listed = [*found.files, *found.left_out] if found.whole else None
    if paths and (table := table_of(filesystem, paths, found.base, listed)):
        folder, kind = table
        raise DataError(
            f"{folder} is a table of {kind}, whose files also hold rows that were deleted or replaced: export its rows "
            f'as plain parquet, as with spark.read.format("{kind.lower()}").load(...).write.parquet(...), and read the '
            "result"
        )


def _without_copies(filesystem: Any, found: Listing) -> tuple[dict[str, int], dict[str, str]]:
    """The files without further names and copies of one, and these with the reason.

    Raises DataError for files of one name, but for the ending of a compression, whose content differs.
    """
    same: dict[str, str] = {}

    def representative(identity: str) -> str:
        while (known := same.setdefault(identity, identity)) != identity:
            identity = known
        return identity

    for path in found.files:
        first, *others = identities(filesystem, path)
        for other in others:
            same[representative(other)] = representative(first)
    kept: dict[str, str] = {}
    copies: dict[str, str] = {}
    content = cache(lambda path: _digest(filesystem, path))
    for path in sorted(found.files, key=lambda path: (compression_of(path) is not None, path)):
        name, *inode = identities(filesystem, path)
        first = kept.setdefault(representative(name), path)
        if first == path:
            continue
        if inode and inode == identities(filesystem, first)[1:]:
            copies[path] = f"another name of {_shown(first, found.base)}"
        elif content(path) == content(first):
            copies[path] = f"same content as {_shown(first, found.base)}"
        else:
            raise DataError(
                f"{first} and {path} have one name and different content: remove the one that is out of date, or "
                "rename one if both hold records of their own"
            )
    return {path: found.files[path] for path in sorted(kept.values())}, copies


def _digest(filesystem: Any, path: str) -> bytes:
    """A digest of a file's content, decompressed."""
    digest, compression = hashlib.sha256(), compression_of(path)
    with filesystem.open(path, "rb") as handle:
        if compression is None:
            while piece := handle.read(BUFFER_BYTES):
                digest.update(piece)
        else:
            try:
                with decompressed(handle, compression) as content:
                    while piece := content.read(BUFFER_BYTES):
                        digest.update(piece)
            except CorruptArchive as fault:
                raise UnreadableDataError(f"cannot read {path}: {fault}, or remove it") from None
    return digest.digest()


def _has_wildcard(path: str) -> bool:
    return any(character in path for character in "*?[")


def _fixed_folder(filesystem: Any, pattern: str) -> str:
    """The longest folder of a pattern that exists as it is written: a folder may be called `a[1]`."""
    fixed = re.split(r"[*?\[]", pattern)[0].rpartition("/")[0]
    while (end := pattern.find("/", len(fixed) + 1)) > 0 and filesystem.isdir(pattern[:end]):
        fixed = pattern[:end]
    return fixed


def _hidden_part(path: str, base: str) -> str | None:
    """The path up to its first step below `base` whose name starts with "." or "_"; None without such a step."""
    inside = path.removeprefix(base).lstrip("/")
    hidden = re.search(r"(?:^|/)[._][^/]*", inside)
    return path[: len(path) - len(inside) + hidden.end()] if hidden else None


def _in_order(left_out: Mapping[str, str]) -> dict[str, str]:
    """Unknown endings first, where records may be missing; hidden names last."""
    rank = {NO_ENDING: 0, FOLDER: 1, NO_FILE: 2, EMPTY: 3, HIDDEN: 5}
    return dict(sorted(left_out.items(), key=lambda item: (rank.get(item[1], 4), item[1], item[0])))


def _shown(path: str, base: str) -> str:
    """A name in a sentence, relative to `base`."""
    name = path.removeprefix(base).lstrip("/")
    return name if name.isprintable() else ascii(name)


def _raise(error: OSError) -> None:
    raise error


def _refuse_linked_folders(filesystem: Any, path: str) -> None:
    """Refuse a folder with a link to a folder: fsspec does not follow it, and the job would read a part of the data."""
    if not isinstance(filesystem, LocalFileSystem):
        return
    for folder, names, _ in os.walk(path, onerror=_raise):
        names[:] = [name for name in names if not name.startswith((".", "_"))]
        for name in names:
            if os.path.islink(link := os.path.join(folder, name)):  # noqa: PTH114, PTH118
                raise DataError(f"{link} is a link to a folder, which is not followed: copy or move the folder itself")


def _is_file(info: Mapping[str, Any]) -> bool:
    """Whether an entry of a listing is a file, or a link to one."""
    return info["type"] == "file" or (bool(info.get("islink")) and os.path.isfile(info["name"]))  # noqa: PTH113


def _is_folder(info: Mapping[str, Any]) -> bool:
    """Whether an entry of a listing is a folder, or a link to one."""
    return info["type"] == "directory" or (bool(info.get("islink")) and os.path.isdir(info["name"]))  # noqa: PTH112
