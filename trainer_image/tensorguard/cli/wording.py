"""Figures as text, as all verbs of the command show them. In: a figure. Out: a few words."""

from __future__ import annotations

ADJACENCY_TEXT = {
    "AddOrRemoveOne": "neighbours: add or remove one",
    "ZeroOut": "neighbours: zero out one; the number of units is public",
}


def steps_text(steps: int, kind: str = "", before: int = 0) -> str:
    """A number of steps, such as `1,000 charged steps`.

    Args:
        kind: "" or a word before "steps".
        before: the steps of earlier trainings that an ε counts too.
    """
    text = " ".join(filter(None, (f"{steps:,}", kind, "step" if steps == 1 else "steps")))
    return f"{text} and {before:,} earlier {'one' if before == 1 else 'ones'}" if before else text


def duration_text(seconds: float) -> str:
    """Seconds as 4:05 or 2:04:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
