"""Renders an inspection as one HTML page that needs nothing else: no script, no font, no picture file, no network.

In: an `Inspection`. Out: HTML. Its text reaches the page through `clean` and jinja2's escaping alone, and a content
security policy in the page forbids all that it does not contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorguard.inspection import text
from tensorguard.inspection.distribution import Distribution
from tensorguard.inspection.inspection import Inspection
from tensorguard.statements.page import page_environment

WIDTH, HEIGHT = 640.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 24.0, 24.0, 22.0, 34.0
ROW = 22.0
LABEL_WIDTH = 180.0
MAX_LABELS = 50
_TICKS = 10
"""At most so many bars have a label below them."""


@dataclass(frozen=True)
class Bar:
    """A bar, in the units of an SVG's view box, with its label and what it counts."""

    x: float
    y: float
    width: float
    height: float
    label: str
    count: int


@dataclass(frozen=True)
class Histogram:
    """Upright bars. `labelled`: every so many bars have a label. `mark`: x of the limit; None where it is not shown."""

    bars: tuple[Bar, ...]
    labelled: int
    mark: float | None = None


def render_page(found: Inspection) -> str:
    """The inspection as a self-contained HTML page, in UTF-8 when it is written."""
    lengths = found.lengths
    return (
        page_environment("tensorguard.inspection")
        .get_template("page.html.j2")
        .render(
            found=found,
            text=text,
            records=histogram(found.records_per_unit),
            lengths=histogram(lengths.tokens, lengths.max_length) if lengths else None,
            labels=label_bars(found.labels or {}),
            box={
                "width": WIDTH,
                "height": HEIGHT,
                "top": TOP,
                "base": HEIGHT - BOTTOM,
                "row": ROW,
                "label": LABEL_WIDTH,
            },
        )
    )


def histogram(found: Distribution | None, limit: int | None = None) -> Histogram | None:
    """The bars of a distribution, with a mark at `limit`; None without one, or where there is one bin."""
    if found is None or len(found.histogram) < 2:
        return None
    bins, most = found.histogram, max(each.count for each in found.histogram)
    width = (WIDTH - LEFT - RIGHT) / len(bins)
    bars = []
    for number, each in enumerate(bins):
        height = (HEIGHT - TOP - BOTTOM) * each.count / most
        x = LEFT + number * width
        bars.append(
            Bar(
                round(x, 1),
                round(HEIGHT - BOTTOM - height, 1),
                round(0.9 * width, 1),
                round(height, 1),
                each.label,
                each.count,
            )
        )
    mark = None
    for number, each in enumerate(bins):
        if limit is not None and each.first <= limit <= each.last:
            share = (limit - each.first + 1) / (each.last - each.first + 1)
            mark = round(LEFT + (number + share) * width, 1)
    return Histogram(tuple(bars), -(-len(bins) // _TICKS), mark)


def label_bars(labels: Mapping[str, int]) -> tuple[Bar, ...]:
    """A lying bar for each class; of many classes, for the most frequent ones."""
    shown = dict(sorted(labels.items(), key=lambda item: -item[1])[:MAX_LABELS]) if len(labels) > MAX_LABELS else labels
    most = max(shown.values(), default=0) or 1
    room = WIDTH - LABEL_WIDTH - 80
    return tuple(
        Bar(LABEL_WIDTH, round(number * ROW, 1), round(room * count / most, 1), 0.7 * ROW, name, count)
        for number, (name, count) in enumerate(shown.items())
    )
