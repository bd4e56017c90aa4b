"""Hook of the documentation site: links to files outside `docs/`.

Pages link to source files as the code host shows them (`../operator/...`). The site has no such files. A link becomes
one to the repository where `TENSAFE_REPOSITORY` holds its address, and plain text elsewhere. A file that does not exist
fails the strict build.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")

log = logging.getLogger("mkdocs.hooks.tensafe")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace links that lead out of `docs/`."""
    docs = Path(config.docs_dir).resolve()
    folder = (docs / page.file.src_uri).parent
    repository = os.environ.get("TENSAFE_REPOSITORY", "").rstrip("/")

    def replaced(link: re.Match[str]) -> str:
        target = (folder / link["target"]).resolve()
        if target.is_relative_to(docs) and target.suffix == ".md":
            return link[0]
        if not target.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, link["target"])
        if repository and target.is_relative_to(ROOT):
            return f"[{link['text']}]({repository}/blob/main/{target.relative_to(ROOT)})"
        return link["text"]

    return _LINK.sub(replaced, markdown)
