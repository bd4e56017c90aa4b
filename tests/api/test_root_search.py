"""The search that calibration uses: it finds exactly the smallest number, with few evaluations of a slow function."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import pytest

from tensafe_api.accounting.root_search import first_at_most_zero


def evaluated(function: Callable[[int], float], low: int, high: int) -> tuple[int, list[int]]:
    """What the search finds, and what it evaluates."""
    tried: list[int] = []

    def recorded(number: int) -> float:
        tried.append(number)
        return function(number)

    return first_at_most_zero(recorded, low, high), tried


def step(place: int, above: float, below: float, number: int) -> float:
    return above if number < place else below


def curve(root: float, power: float, number: int) -> float:
    return power * math.log(root / number)


@pytest.mark.parametrize("low", [0, 1, 49_999, 10**6])
@pytest.mark.parametrize("width", [1, 2, 3, 10, 1000])
def test_every_place_of_a_step_is_found(low: int, width: int) -> None:
    """A step has no slope that would lead to it."""
    for place in {low + 1, low + (width + 1) // 2, low + width}:
        found, tried = evaluated(partial(step, place, 1.0, -1.0), low, low + width)
        assert found == place
        assert len(tried) == len(set(tried)) and min(tried) == low and max(tried) == low + width


@pytest.mark.parametrize("far", [1e-300, 1e-16, 1.0, 700.0])
def test_search_ends_where_both_sides_differ_by_any_factor(far: float) -> None:
    for above, below in ((far, 0.0), (far, -1e-300), (709.0, -far), (math.ulp(1.0), -700.0)):
        found, tried = evaluated(partial(step, 123_456, above, below), 50_000, 10**9)
        assert found == 123_456 and len(tried) < 300


def test_few_evaluations_suffice_for_curves_like_those_of_epsilon() -> None:
    generator, counts = random.Random(5), []
    for _ in range(500):
        low = generator.randint(50_000, 10**6)
        high = int(low * generator.choice([8 / 7, 2, 20]))
        root, power = generator.uniform(low + 1e-6, high), generator.choice([1, 1.2, 2, 3])
        found, tried = evaluated(partial(curve, root, power), low, high)
        assert found == math.ceil(root)
        counts.append(len(tried))
    assert sum(counts) / len(counts) <= 8 and max(counts) <= 14


@pytest.mark.parametrize("wrong", [range(50, 60), range(1, 70), range(400, 999)])
def test_value_that_is_not_a_number_does_not_meet_the_target(wrong: range) -> None:
    found, _ = evaluated(lambda number: math.nan if number in wrong else step(50, 1.0, -1.0, number), 0, 1000)
    assert found not in wrong and found >= 50
