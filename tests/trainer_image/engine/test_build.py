"""What is said of the machine that a model was tried on."""

from __future__ import annotations

from tensorguard.engine.build import remarks
from tensorguard.models.checks import SelfTest


def test_a_kernel_s_rounding_is_said_with_what_it_could_cost() -> None:
    assert remarks(SelfTest(sum_error=1e-7, neighbour_error=0.0), 512) == ()
    (remark,) = remarks(SelfTest(sum_error=1e-7, neighbour_error=2.5e-7), 512)
    assert "a relative 2.5e-07" in remark
    assert "Over an expected batch of 512 that could add 2.6e-04 to a sensitivity of 1" in remark
    assert "the claim does not cover" in remark
