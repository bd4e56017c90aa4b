"""Finds files of a model's folder that were not downloaded as a whole, before a worker loads them.

In: a folder with a config.json. Out: one sentence with the file and the fix, or nothing. `git clone` without Git LFS
leaves pointers in place of files, and a download that was interrupted leaves files that are cut. A pointer in place of
a vocabulary even loads, as a vocabulary of three lines.

Few bytes of each file are read: a safetensors file begins with its length, and an archive ends with its list of files.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tensorguard.storage import GIT_LFS_FIX, GIT_LFS_POINTER

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Where transformers looks for the weights, in this order. Those of other formats may be pointers."""
_TEXTS = (".json", ".txt", ".model", ".jinja")
"""Suffixes of configs, tokenizers and templates."""
_DOWNLOAD = "download it again"


def find_incomplete_file(folder: Path) -> str | None:
    """A sentence about a text or the weights of a model that are pointers, cut, damaged or absent; None if all are
    complete as far as their first and last bytes show.
    """
    for path in sorted(folder.iterdir()):
        if path.suffix in _TEXTS and path.is_file() and (fault := _fault(path)):
            return f"{path} {fault}"
    for path, index in _weights(folder):
        if not path.is_file():
            return f"{path}, which {index} names, does not exist: {_DOWNLOAD}"
        if fault := _fault(path):
            return f"{path} {fault}"
    return None


def find_broken_json(folder: Path) -> str | None:
    """A sentence about a file *.json of the folder that is not JSON. A tokenizer of many megabytes is read whole."""
    broken = next((path for path in sorted(folder.glob("*.json")) if not _is_json(path)), None)
    return f"{broken} is not JSON: correct it, or {_DOWNLOAD}" if broken else None


def _weights(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files of the weights that transformers loads, each with the index that names it, or ""."""
    first = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if first is None:
        return
    if first.suffix != ".json":
        yield first, ""
        return
    try:
        files = set(json.loads(first.read_bytes())["weight_map"].values())
    except (ValueError, LookupError, AttributeError, TypeError):
        return  # the loader refuses it
    yield from ((folder / file, first.name) for file in sorted(files))


def _fault(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            start = file.read(len(GIT_LFS_POINTER))
        if start == GIT_LFS_POINTER:
            return f"is a Git LFS pointer: {GIT_LFS_FIX}"
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np"):
                return None
        archive = start.startswith(b"PK")  # torch wrote no archives before its release 1.6
        cut = path.suffix == ".bin" and (not start or (archive and not zipfile.is_zipfile(path)))
        return f"is cut or damaged: {_DOWNLOAD}" if cut else None
    except SafetensorError:
        return f"is cut or damaged: {_DOWNLOAD}"
    except OSError as error:
        return f"cannot be read ({(error.strerror or str(error)).lower()}): correct its permissions"


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True
