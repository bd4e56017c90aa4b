"""A real browser without a window: pictures of a page in both themes, and its print.

    python -m tests.support.programs.browser PAGE.html PICTURE.png [--dark]

In: an HTML file. Out: a PNG or a PDF, by headless Chromium. Debian has it as the package chromium-headless-shell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "no Chromium on this machine: `apt-get install chromium-headless-shell` brings one"
_SECONDS = 120
_DARK, _LIGHT = 0, 1
"""Chromium's numbers of a reader's preferred themes."""
_PAGE = re.compile(rb"/Type\s*/Page\b(?!s)")
_REQUEST = re.compile(r'"url":\s*"([^"]+)"')


def find_browser() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def take_picture(page: Path, picture: Path, *, dark: bool = False, width: int = 1000, height: int = 1400) -> None:
    """Write a PNG of `width` x `height` pixels of the page's top to `picture`."""
    theme = f"--blink-settings=preferredColorScheme={_DARK if dark else _LIGHT}"
    _run(page, theme, f"--window-size={width},{height}", "--hide-scrollbars", f"--screenshot={picture}")


def print_page(page: Path, pdf: Path) -> int:
    """Print the page to `pdf`, on the paper that it asks for. Returns the number of pages."""
    _run(page, "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    return len(_PAGE.findall(pdf.read_bytes()))


def requests_of(page: Path) -> list[str]:
    """The addresses that the browser asks for while it shows the page, that of the page included."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "net.json"
        _run(page, f"--log-net-log={log}", "--net-log-capture-mode=Everything", "--dump-dom")
        text = log.read_text("utf-8", errors="replace")
    return sorted(set(_REQUEST.findall(text)))


def _run(page: Path, *options: str) -> None:
    browser = find_browser()
    assert browser is not None, NO_BROWSER
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            *("--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
            *(("--no-sandbox",) if os.geteuid() == 0 else ()),
            f"--user-data-dir={profile}",
            *options,
            page.resolve().as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--dark"]
    take_picture(Path(arguments[0]), Path(arguments[1]), dark="--dark" in sys.argv)
