"""Places the ε of a report on the axes of a picture.

In: the points of a report, and its target. Out: positions in the units of an SVG's view box. The page's template draws
them, in colours that follow the theme of the reader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorguard.statements.report import Report

WIDTH, HEIGHT = 640.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 16.0, 22.0, 34.0
"""Size of the view box, and its margins."""
_TICKS = 5
_HEADROOM = 1.12
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Point:
    """A place in the picture, and what it stands for."""

    x: float
    y: float
    steps: int
    epsilon: str


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its position on that axis, and its label."""

    place: float
    label: str


@dataclass(frozen=True)
class Picture:
    """The curve and its axes.

    Attributes:
        line: the points of the curve, as SVG's `points`.
        area: the same, closed along the horizontal axis.
        claimed, spent: the last point, and that of the charged steps; None where both are one.
        target: height of the target; None where it is out of the picture.
    """

    line: str
    area: str
    claimed: Point
    spent: Point | None
    target: float | None
    horizontal: list[Tick]
    vertical: list[Tick]


def draw(report: Report) -> Picture:
    """The picture of a report's curve. Points without a finite ε are left out."""
    finite = [each for each in report.parts.curve if each.epsilon != "inf"] or report.parts.curve[:1]
    claim, spent = report.document.claim, report.document.spent
    highest = max(_number(each.epsilon) for each in finite)
    target = float(claim.target_epsilon)
    top = max(highest, target if target <= 2 * highest else 0.0) * _HEADROOM or 1.0
    most = max(claim.steps, 1)

    def point(steps: int, epsilon: str) -> Point:
        x = LEFT + (WIDTH - LEFT - RIGHT) * steps / most
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(_number(epsilon), top) / top
        return Point(round(x, 1), round(y, 1), steps, epsilon)

    points = [point(each.steps, each.epsilon) for each in finite]
    line = " ".join(f"{each.x:g},{each.y:g}" for each in points)
    base = HEIGHT - BOTTOM
    return Picture(
        line=line,
        area=f"{points[0].x:g},{base:g} {line} {points[-1].x:g},{base:g}",
        claimed=points[-1],
        spent=point(spent.steps_charged, spent.epsilon) if spent.steps_charged < claim.steps else None,
        target=point(0, f"{target}").y if target <= top else None,
        horizontal=[Tick(point(round(each), "0").x, f"{each:g}") for each in _ticks(most) if each == round(each)],
        vertical=[Tick(point(0, f"{each}").y, f"{each:g}") for each in _ticks(top)],
    )


def _number(epsilon: str) -> float:
    value = float(epsilon)
    return value if math.isfinite(value) else 0.0


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 to `most`."""
    rough = most / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(nice * power for nice in _NICE if nice * power >= rough)
    return [round(number * step, 10) for number in range(int(most / step + 1e-9) + 1)]
