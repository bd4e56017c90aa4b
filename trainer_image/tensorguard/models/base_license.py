"""The license of a base model, as its own model card names it.

In: a `ModelSource`. Out: the fields of the card's front matter that are about the license, or nothing. Nothing is
guessed: a license file, the license of a package, or that of another version of the model do not count.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import yaml
from huggingface_hub import ModelCard, hf_hub_download

from tensorguard.models.source import ModelSource

CARD = "README.md"
_MAX_BYTES = 1 << 20
_MAX_LENGTH = 200
_FIELDS = ("license", "license_name", "license_link")


@functools.cache
def base_license(source: ModelSource) -> Mapping[str, str]:
    """`license`, `license_name` and `license_link` of the base model's card, as far as it has them.

    A model on the Hub is asked for its card at the commit of its weights. A link without a host is left out, because it
    would point to a file of the base model's repository. A card that cannot be read counts as none.
    """
    try:
        path = Path(source.location) / CARD
        if source.is_hub:
            path = Path(hf_hub_download(source.name, CARD, revision=source.revision))
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode()
        data = ModelCard(text, ignore_metadata_errors=True).data
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return MappingProxyType({})
    found = {field: data.get(field) for field in _FIELDS}
    known = {field: value for field, value in found.items() if isinstance(value, str) and 0 < len(value) <= _MAX_LENGTH}
    if not known.get("license_link", "https://").startswith("https://"):
        del known["license_link"]
    return MappingProxyType(known if "license" in known else {})
