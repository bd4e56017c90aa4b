"""Finds the files of a model: a folder, an installed package, or a repository on the hub.

In: `spec.model.name` and `.revision`. Out: a `ModelSource`, which names one fixed set of files. Then `load` reads them.

A hub name is pinned to its current commit, so every rank and every later attempt loads the same weights, and the
statement can name the commit. The hub's token comes from the environment (`HF_TOKEN`), where huggingface_hub reads it.
This module never reads it.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from huggingface_hub import hf_hub_download

from tensafe_api.reasons import Reason
from tensafe_api.resources.model import COMMIT
from tensorguard.models.file_check import find_incomplete_file

_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


class ModelNotFoundError(ValueError):
    """There is no model with this name, or not all of its files. The message is one sentence for the user."""

    reason: ClassVar[Reason] = Reason.MODEL_UNAVAILABLE


@dataclass(frozen=True)
class ModelSource:
    """`name`: as the user wrote it. `location`: what transformers receives. `revision`: a hub commit, else None."""

    name: str
    location: str
    revision: str | None

    @property
    def is_hub(self) -> bool:
        return self.revision is not None

    def identity(self) -> str:
        """The resolved model: `commit:<sha>` on the hub, else `sha256:<hex>` over its config, weights and index."""
        if self.is_hub:
            return f"{COMMIT}{self.revision}"
        folder = Path(self.location)
        digest = hashlib.sha256()
        for path in sorted({folder / "config.json", *(p for glob in _WEIGHTS for p in folder.glob(glob))}):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.name} {content}\n".encode())
        return f"sha256:{digest.hexdigest()}"


def resolve_model(name: str, revision: str | None = None) -> ModelSource:
    """Find a model by path, else as an installed package, else on the hub. Only the last one uses the network.

    A name that begins with ".", "/" or "~" can only be a path.

    Raises ModelNotFoundError if none of them has it, if files in the folder are incomplete, or if `revision` is given
    for files without revisions.
    """
    folder = _folder(name) or _package_folder(name)
    if folder is None and name.startswith((".", "/", "~")):
        raise ModelNotFoundError(f"spec.model.name: there is no folder {name}: check the path.")
    if folder is None:
        return _on_hub(name, revision)
    if revision is not None:
        raise ModelNotFoundError(
            f"spec.model.revision is '{revision}', but '{name}' is {folder} on this machine and has no revisions: "
            "remove it."
        )
    if incomplete := find_incomplete_file(folder):
        raise ModelNotFoundError(f"spec.model.name: {incomplete}.")
    return ModelSource(name, str(folder), None)


def _folder(name: str) -> Path | None:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return None
    if not _is_model(folder / "config.json"):
        if (folder / "config.json").is_file() and (incomplete := find_incomplete_file(folder)):
            raise ModelNotFoundError(f"spec.model.name: {incomplete}.")
        raise ModelNotFoundError(
            f"spec.model.name: '{name}' is a folder without a model: it needs a config.json with 'model_type'."
        )
    return folder.resolve()


def _package_folder(name: str) -> Path | None:
    """The folder of the package's config.json nearest to its root; None if there is no such package."""
    if "/" in name or "\\" in name:
        return None
    configs = [path for path in _package_files(name) if path.name == "config.json" and _is_model(path)]
    return min((path.parent for path in configs), key=lambda folder: (len(folder.parts), str(folder)), default=None)


def _package_files(name: str) -> Iterable[Path]:
    try:
        files = importlib.metadata.files(name) or []
        return [Path(str(file.locate())).resolve() for file in files]
    except importlib.metadata.PackageNotFoundError:
        pass
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [path for root in roots for path in Path(root).rglob("config.json")]


def _is_model(config: Path) -> bool:
    """Whether it is a model's config.json. A package can hold others, such as the config of a pooling layer."""
    try:
        return "model_type" in json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def _on_hub(name: str, revision: str | None) -> ModelSource:
    """The model on the hub. The hub's cache keeps a repository's files in a folder whose name is their commit."""
    try:
        config = Path(hf_hub_download(name, "config.json", revision=revision))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].split(". ")[0].rstrip(".:")
        raise ModelNotFoundError(
            f"spec.model.name: '{name}' is not a folder, not an installed package with a model, and not available from "
            f"the hub ({reason}): check the name, the network, and HF_TOKEN for a private model."
        ) from error
    return ModelSource(name, name, config.parent.name)
