"""The pictures of the growth benchmark: milliseconds of one worker, on axes of powers, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorguard.cli.pictures import FAINT, INK, LIMIT, PRIVACY, QUALITY, new_figure, style

_COLOURS = (QUALITY, PRIVACY, LIMIT, FAINT)


def draw(
    path: Path,
    title: str,
    x_label: str,
    x: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    y_label: str = "CPU time of one worker in a step (ms)",
) -> None:
    """Draw each of `lines` over `x`, and write the picture to `path`. Raises OSError if it cannot be written."""
    import matplotlib

    figure, (panel,) = new_figure(7, 4)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for (name, values), colour in zip(lines.items(), _COLOURS):
        panel.plot(x, values, "o-", color=colour, linewidth=2, markersize=5, label=name)
    panel.set_xticks(x, [_short(each) for each in x])
    panel.minorticks_off()
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    panel.set_xlabel(x_label)
    panel.set_ylabel(y_label)
    panel.set_title(title, loc="left", color=INK, fontsize=11)
    style(panel)
    figure.legend(loc="outside right center", frameon=False, fontsize=9, labelcolor=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Text stays text, the same figures give the same file, and the background is white in both themes of the site.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tensafe", "font.family": "sans-serif"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")


def _short(number: int) -> str:
    """A number as a label of an axis: 17k, 1.1M."""
    for size, unit in ((1_000_000, "M"), (10_000, "k")):
        if number >= size:
            return f"{number / (1000 if unit == 'k' else size):.3g}{unit}"
    return f"{number:,}"
