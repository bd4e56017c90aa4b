"""Text on a terminal or in a pipe: lines, facts, tables, and a progress bar.

Colours are used on a terminal only. What comes from the cluster, such as the message of an Event, is cleaned of control
characters, because a terminal would obey them, and of ends of lines, because a message could imitate other lines.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from tensafe_api.reasons import Phase
from tensafe_api.sanitize import clean as clean
from tensafe_api.timestamps import parse_time
from tensorguard.cli import tables

PHASE_STYLES = {
    Phase.RUNNING.value: "bold green",
    Phase.SUCCEEDED.value: "bold green",
    Phase.BUDGET_EXHAUSTED.value: "bold yellow",
    Phase.SUSPENDED.value: "bold yellow",
    Phase.QUEUED.value: "bold yellow",
    Phase.FAILED.value: "bold red",
}
LONGEST = 1024
"""Number of characters of a text that a stranger may have written, such as the message of an Event: the API server
bounds none of them."""
_BAR_WIDTH = 30
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def cut(text: str) -> str:
    """A text of at most `LONGEST` characters. One that was cut ends with an ellipsis."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def clean_log(line: bytes) -> str:
    """A line of a log for a terminal: without the colours that programs write, and cleaned."""
    return clean(_COLOUR.sub("", line.decode(errors="replace").rstrip("\r")))


def print_json(document: object) -> None:
    """Print a document for a program. All but ASCII is escaped on a terminal, because no text is cleaned in it, and
    where the output has another encoding than UTF-8, which may lack a character.
    """
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    print(json.dumps(document, indent=2, ensure_ascii=sys.stdout.isatty() or encoding != "utf8"))


def print_stored_json(content: bytes, document: object) -> None:
    """Print a stored JSON file: for a program with its own bytes, whose digest is known; on a terminal as `print_json`.

    Args:
        document: the same, as it was read from `content`.
    """
    if sys.stdout.isatty():
        print_json(document)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)


def bar(done: int, total: int) -> str:
    """A progress bar. It is full only when all steps are done."""
    filled = _BAR_WIDTH * min(done, total) // total if total else 0
    return "█" * filled + "░" * (_BAR_WIDTH - filled)


def print_line(*parts: str | tuple[str, str]) -> None:
    """Print one line. A part is text, or text with a style."""
    _print(Console(highlight=False), parts)


def print_note(*parts: str | tuple[str, str]) -> None:
    """Print one line to standard error."""
    _print(Console(stderr=True, highlight=False), parts)


def print_facts(rows: Iterable[tuple[str, str, str]]) -> None:
    """Print rows of a name, a value and a remark. Rows without a value are left out."""
    kept = [(name, clean(value), clean(remark)) for name, value, remark in rows if value]
    if kept:
        tables.print_facts(kept)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with headers."""
    tables.print_table(headers, [[clean(cell) for cell in row] for row in rows])


def age(text: str | None, now: float) -> str:
    """The time since a timestamp, as kubectl prints it: 42s, 5m, 3h, 12d. Empty without a timestamp."""
    since = parse_time(text)
    if since is None:
        return ""
    seconds = max(0, int(now - since))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _print(console: Console, parts: Sequence[str | tuple[str, str]]) -> None:
    pairs = [part if isinstance(part, tuple) else (part, "") for part in parts]
    if console.is_terminal:
        console.print(Text.assemble(*((clean(text), style) for text, style in pairs)))
    else:  # rich would wrap the line
        print("".join(clean(text) for text, _ in pairs), file=sys.stderr if console.stderr else sys.stdout)
