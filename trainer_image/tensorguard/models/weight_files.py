"""Reads parts of a model's weights from its safetensors files, so that no process has to read all of them.

In: a `ModelSource`. Out: `WeightFiles`, which reads some rows of a tensor by its name. `sharded_base` reads one
worker's rows of each weight with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open

from tensorguard.models.source import ModelSource

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True)
class WeightFiles:
    """The tensors of a checkpoint. `files`: the file of each tensor, by the tensor's name."""

    files: Mapping[str, Path]

    @classmethod
    def of(cls, source: ModelSource) -> WeightFiles | None:
        """The safetensors files of a model, downloaded from the hub if need be.

        Returns None if it has none, or if its index is wrong: then transformers loads it as a whole, or refuses it.
        Where a folder has both one file and an index, the file counts, as for transformers.
        """
        folder = Path(source.location)
        if source.is_hub:
            patterns = [_INDEX, "model*.safetensors"]
            folder = Path(snapshot_download(source.location, revision=source.revision, allow_patterns=patterns))
        if (folder / _SINGLE).is_file():
            return cls(dict.fromkeys(_names_in(folder / _SINGLE), folder / _SINGLE))
        if not (folder / _INDEX).is_file():
            return None
        names = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        inside = {file: _names_in(folder / file) for file in set(names.values()) if _is_file_of(folder, file)}
        if any(name not in inside.get(file, ()) for name, file in names.items()):
            return None
        return cls({name: folder / file for name, file in names.items()})

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        with safe_open(self.files[name], framework="pt") as file:
            return tuple(file.get_slice(name).get_shape())

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Rows `start` to `stop` of a tensor, in the dtype of the file. Only they are read."""
        with safe_open(self.files[name], framework="pt") as file:
            part = file.get_slice(name)
            tensor: torch.Tensor = part[start:stop] if part.get_shape() else file.get_tensor(name)
            return tensor


def _is_file_of(folder: Path, file: str) -> bool:
    return Path(file).name == file and (folder / file).is_file()


def _names_in(path: Path) -> frozenset[str]:
    with safe_open(path, framework="pt") as file:
        return frozenset(file.keys())
