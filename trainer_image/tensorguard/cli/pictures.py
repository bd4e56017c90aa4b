"""The style of the pictures that commands write: `report.png` of a run, and the one of `tensafe plan --plot`.

matplotlib is imported when a picture is made, since most commands make none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#1f2933", "#9aa5b1"
"""Text; axes, grids and what matters less."""
PRIVACY, LIMIT, QUALITY = "#4c51bf", "#c53030", "#0f766e"
"""What privacy costs, in ε or in noise; its limit; how good the model is."""


def new_figure(
    width: float, height: float, panels: int = 1, *, shared: bool = True, heights: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure of `width` x `height` inches with panels below each other.

    Args:
        shared: whether the panels share their horizontal axis.
        heights: the relative heights of the panels; equal if None.
    """
    # matplotlib reports its font cache and its folders on standard error.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(panels, 1, sharex=shared, squeeze=False, height_ratios=heights)[:, 0])


def style(panel: Axes) -> None:
    """Draw the axes, their labels and a grid of horizontal lines in the style of all pictures."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(FAINT)
    panel.tick_params(colors=INK, labelsize=9)
    panel.xaxis.label.set_color(INK)
    panel.yaxis.label.set_color(INK)
    panel.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.7)
    panel.set_axisbelow(True)
