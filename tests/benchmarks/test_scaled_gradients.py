"""The factors of "scale then privatise" in `benchmarks.correlated_noise`."""

from __future__ import annotations

import pytest
import torch

from benchmarks.correlated_noise import Scales


def test_first_step_is_not_scaled() -> None:
    scales = Scales([torch.zeros(2, 3)], noise=1.0, floor=1.0, batch=4)
    assert torch.equal(scales.factors[0], torch.ones(2, 3))


def test_coordinates_with_small_sums_are_enlarged_and_the_norm_of_the_roots_stays() -> None:
    scales = Scales([torch.zeros(4)], noise=1.0, floor=0.5, batch=1)
    scales.learn([torch.tensor([0.1, 0.5, 5.0, 50.0])])
    factors = scales.factors[0]
    assert factors[0] == factors[1] > factors[2] > factors[3], "below the noise, a sum says nothing"
    roots = torch.tensor([0.0, 0.0, 24.0**0.5, 2499.0**0.5]) + 0.5
    assert float((factors * roots).norm()) == pytest.approx(float(roots.norm()), rel=1e-5)


def test_noise_that_was_scaled_back_is_subtracted_with_its_factor() -> None:
    scales = Scales([torch.zeros(2)], noise=1.0, floor=0.5, batch=1)
    scales.factors = [torch.tensor([0.5, 1.0])]
    scales.learn([torch.tensor([2.0, 2.0])])
    roots = torch.tensor([0.0, 3.0**0.5]) + 0.5
    assert torch.allclose(scales.factors[0] / scales.factors[0][1], roots[1] / roots)
