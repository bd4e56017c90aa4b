"""Integer root finding (Anderson-Björck): where a falling function of whole numbers reaches zero."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable


def first_at_most_zero(excess: Callable[[int], float], low: int, high: int) -> int:
    """The smallest whole number at which a falling function is at most 0. It is above 0 at `low`, and not at `high`.
    A value that is not a number counts as above 0.

    Each try is where a straight line through both ends is 0. Where one end stays, its weight is lowered as in the
    method of Anderson and Björck. Every eighth try is the middle.
    """
    above, below, side = excess(low), excess(high), 0
    for count in itertools.count(1):
        if high - low <= 1:
            break
        part = above / (above - below) if math.inf > above > below else 0.5  # both can become 0
        line = low + math.ceil((high - low) * part)
        tried = (low + high) // 2 if count % 8 == 0 else min(max(line, low + 1), high - 1)
        value = excess(tried)
        if not value <= 0:  # also where it is not a number: what cannot be computed does not meet a target
            value = value if value > 0 else math.inf
            below *= _weight(value, above) if side > 0 else 1.0
            low, above, side = tried, value, 1
        else:
            above *= _weight(value, below) if side < 0 else 1.0
            high, below, side = tried, value, -1
    return high


def _weight(value: float, before: float) -> float:
    """The weight of an end that stays, where the other end has moved from `before` to `value` twice in a row."""
    weight = 1 - value / before if before and math.isfinite(value) else 0.0
    return weight if weight > 0 else 0.5
