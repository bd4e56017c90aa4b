"""Hooks of the documentation site: Mermaid, and links to files outside `docs/`.

Pages with diagrams load Mermaid from the site itself, so that they need no network. `scripts/setup docs` installs it.
The theme loads it from the internet where a page has none.

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

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parents[1]
MERMAID = ROOT / ".venv" / "mermaid"
SCRIPT = "assets/mermaid/mermaid.min.js"
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")

log = logging.getLogger("mkdocs.hooks.tensafe")


def on_files(files: Any, *, config: Any) -> Any:
    """Add Mermaid and its licence to the site."""
    for path in MERMAID.glob("*"):
        files.append(File.generated(config, f"assets/mermaid/{path.name}", abs_src_path=str(path)))
    return files


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Load Mermaid where a page has a diagram. The theme uses it if it is there."""
    if 'class="mermaid"' not in output or not (MERMAID / "mermaid.min.js").is_file():
        return output
    return output.replace("</body>", f'<script src="{get_relative_url(SCRIPT, page.url)}"></script></body>')


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
