"""The learning rate of each step."""

from __future__ import annotations

import math

import pytest

from tensorguard.training.schedule import Shape, learning_rate_schedule


@pytest.mark.parametrize(
    ("shape", "steps", "warmup", "rates"),
    [
        ("Linear", 4, 0, [1.0, 0.75, 0.5, 0.25]),
        ("Linear", 6, 2, [1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25]),
        ("Constant", 4, 1, [0.5, 1.0, 1.0, 1.0]),
        ("Cosine", 4, 0, [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ("Linear", 3, 3, [0.25, 0.5, 0.75]),
    ],
)
def test_rate_rises_to_its_maximum_and_falls_to_zero(shape: Shape, steps: int, warmup: int, rates: list[float]) -> None:
    rate_of = learning_rate_schedule(8.0, shape, steps, warmup)
    assert [rate_of(step) / 8.0 for step in range(steps)] == pytest.approx(rates)


@pytest.mark.parametrize("shape", ["Linear", "Cosine"])
def test_rate_stays_zero_after_the_last_step(shape: Shape) -> None:
    rate_of = learning_rate_schedule(8.0, shape, 4, 1)
    assert [rate_of(4), rate_of(9)] == pytest.approx([0.0, 0.0])


def test_warm_up_of_all_steps_has_a_rate_after_them() -> None:
    assert learning_rate_schedule(8.0, "Linear", 3, 3)(3) == 8.0
    assert learning_rate_schedule(8.0, "Linear", 3, 3)(4) == 0.0
