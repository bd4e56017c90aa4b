"""The exact sensitivity bound: one unit adds an integer vector of norm at most S, whatever other units join."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tensorguard.privacy import clipping
from tensorguard.privacy.clipping import GridClipper, GridTooCoarse, uniforms

CPU = torch.device("cpu")
GRID = 1 << 14


def clipper(dimension: int, grid: int = GRID, clip: float = 1.0) -> GridClipper:
    return GridClipper(dimension, grid, clip, CPU)


def square(row: torch.Tensor) -> int:
    """Σk², in Python integers, which do not overflow."""
    return sum(k * k for k in row.tolist())


floats = st.floats(width=32, allow_subnormal=True)
spans = st.sampled_from([1e-45, 1e-38, 1e-6, 0.01, 1.0, 30.0, 1e6, 1e30, 3e38])


@st.composite
def rows(draw: st.DrawFn, dimension: int) -> list[float]:
    """A unit's gradient, extreme values included."""
    kind = draw(st.sampled_from(["any", "constant", "gauss", "spike", "poisoned", "bf16"]))
    if kind == "any":
        return draw(st.lists(floats, min_size=dimension, max_size=dimension))
    if kind == "constant":
        return [draw(st.one_of(spans, st.just(0.0), floats))] * dimension
    base = torch.randn(dimension, generator=torch.Generator().manual_seed(draw(st.integers(0, 2**31)))) * draw(spans)
    if kind == "bf16":
        base = base.to(torch.bfloat16).to(torch.float32)
    row: list[float] = base.tolist()
    if kind in ("spike", "poisoned"):
        where = draw(st.integers(0, dimension - 1))
        row[where] = draw(spans if kind == "spike" else st.sampled_from([math.nan, math.inf, -math.inf]))
    return row


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[int, float, list[tuple[list[float], int]], tuple[list[float], int], int, int]:
    """d, C, the units of D with their rounding seeds, x with its seed, the position of x, and the rows per block."""
    dimension = draw(st.sampled_from([1, 2, 3, 17, 64, 129]))
    units = draw(st.lists(rows(dimension), max_size=5))
    if units and draw(st.booleans()):
        units.append(units[0])
    x = draw(st.one_of(rows(dimension), st.sampled_from(units)) if units else rows(dimension))
    seeds = draw(st.lists(st.integers(0, 2**63 - 1), min_size=len(units) + 1, max_size=len(units) + 1))
    return (
        dimension,
        draw(st.sampled_from([1.0, 1e-3, 0.37, 250.0, 1e-300, 1e300])),
        list(zip(units, seeds)),
        (x, seeds[-1]),
        draw(st.integers(0, len(units))),
        draw(st.integers(1, 7)),
    )


def total(clip: GridClipper, units: list[tuple[list[float], int]]) -> torch.Tensor:
    if units:
        clip.add(torch.tensor([row for row, _ in units], dtype=torch.float32), [seed for _, seed in units])
    return clip.take()


@pytest.mark.slow
@settings(max_examples=400)
@given(neighbours())
def test_neighbouring_sums_differ_by_at_most_the_grid(
    case: tuple[int, float, list[tuple[list[float], int]], tuple[list[float], int], int, int],
) -> None:
    dimension, bound, units, x, place, rows_at_once = case
    without, with_x = clipper(dimension, clip=bound), clipper(dimension, clip=bound)
    with_x._rows_at_once = rows_at_once
    difference = total(with_x, [*units[:place], x, *units[place:]]) - total(without, units)
    assert square(difference) <= GRID**2
    alone = total(clipper(dimension, clip=bound), [x])
    assert torch.equal(difference, alone)
    if not all(map(math.isfinite, x[0])):
        assert not alone.any()


@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([1.0, 1.01, 1.5]))
def test_unit_just_above_the_clip_norm_stays_within_the_grid(seed: int, dimension: int, factor: float) -> None:
    row = torch.randn(dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    row *= factor / row.norm()
    rounded = clipper(dimension).to_grid(row.to(torch.float32).unsqueeze(0), [seed])[0]
    assert (GRID - 8 - dimension) ** 2 <= square(rounded) <= GRID**2


@pytest.mark.parametrize("norm", [0.25, 0.999, 1.001, 4.0, 1e20])
@pytest.mark.parametrize("bound", [1.0, 0.1, 8.0])
def test_clipping_keeps_the_direction_and_bounds_the_norm(norm: float, bound: float) -> None:
    row = torch.randn(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    row *= norm * bound / row.norm()
    rounded = clipper(500, 1 << 20, bound).to_grid(row.to(torch.float32).unsqueeze(0), [1])[0].double()
    decoded = rounded * bound / (1 << 20)
    expected = row * min(1.0, bound / float(row.norm()))
    # Rounding moves each coordinate by less than a step of 2^-20 C, and the margin takes 4 of 2^20 parts.
    assert torch.allclose(decoded, expected, rtol=1e-5, atol=2 * bound / (1 << 20))
    assert float(decoded.norm()) <= bound


def test_added_units_are_summed_until_take() -> None:
    one, seeds = torch.eye(3, dtype=torch.float32) / 2, [1, 2, 3]
    joint, separate = clipper(3), clipper(3)
    joint.add(one.clone(), seeds)
    for row, seed in zip(one.clone(), seeds):
        separate.add(row.unsqueeze(0), [seed])
    summed = joint.take()
    assert torch.equal(summed, separate.take())
    assert summed.dtype == torch.int64
    assert not joint.take().any()


def test_norms_before_clipping_are_kept_only_if_requested() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    plain, with_norms = clipper(2), GridClipper(2, GRID, 1.0, CPU, keep_norms=True)
    for one in (plain, with_norms):
        one.add(rows.clone(), [1, 2])
        one.add(rows[:1].clone(), [3])
    assert plain.take_norms() == []
    assert with_norms.take_norms() == pytest.approx([5.0, 0.5, 5.0])
    assert with_norms.take_norms() == []
    assert torch.equal(plain.take(), with_norms.take())


@pytest.mark.parametrize("rows_at_once", [1, 2, 3])
def test_every_row_is_added_once_whatever_the_size_of_a_block(rows_at_once: int) -> None:
    """A unit that is added twice has twice the sensitivity."""
    blocks, rows = clipper(5), torch.eye(5)
    blocks._rows_at_once = rows_at_once
    blocks.add(rows.clone(), [7] * 5)
    assert torch.equal(blocks.take(), clipper(5).to_grid(rows, [7] * 5).sum(dim=0))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_unit_whose_gradient_is_not_finite_adds_nothing(value: float) -> None:
    row = torch.full((1, 40), 0.1)
    row[0, 7] = value
    assert not clipper(40).to_grid(row, [1]).any()


def test_rows_in_double_precision_are_clipped_like_others() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.25, 0.5]])
    assert torch.equal(clipper(2).to_grid(rows.double(), [1, 2]), clipper(2).to_grid(rows, [1, 2]))


def test_no_units_add_nothing() -> None:
    empty = clipper(3)
    empty.add(torch.empty(0, 3), [])
    assert empty.take().tolist() == [0, 0, 0]


@pytest.mark.parametrize("steps", [0.3, -0.3, 10.75, -1000.5])
def test_rounding_is_unbiased(steps: float) -> None:
    """The mean over many seeds equals the value. Fractions of 16 bits leave a bias below 2^-16."""
    dimension, seeds = 64, list(range(3000))
    grid_clipper = clipper(dimension)
    value = steps / grid_clipper._scaled_norm
    drawn = grid_clipper.to_grid(torch.full((len(seeds), dimension), value, dtype=torch.float32), seeds).double()
    fraction = steps - math.floor(steps)
    assert set(drawn.unique().tolist()) == {math.floor(steps), math.floor(steps) + 1}
    error = math.sqrt(fraction * (1 - fraction) / drawn.numel())
    assert abs(float(drawn.mean()) - steps) < 5 * error + 2**-16
    # Coordinates and units round independently of each other.
    for axis in (0, 1):
        spread = drawn.mean(dim=axis)
        statistic = float(((spread - steps) ** 2).sum()) / (error**2 * drawn.numel() / drawn.shape[axis])
        assert 1e-6 < stats.chi2(len(spread)).sf(statistic) < 1 - 1e-6


@pytest.mark.parametrize("draw", [uniforms, clipping._uniforms_of_generator], ids=["CPU", "GPU"])
def test_uniforms_are_uniform_and_depend_only_on_their_seed(draw: Callable[..., torch.Tensor]) -> None:
    drawn = draw([1, 2, 1], 40_000, CPU)
    assert (drawn.shape, drawn.dtype) == ((3, 40_000), torch.float32)
    assert torch.equal(drawn[0], drawn[2])
    assert float(drawn.min()) >= 0 and float(drawn.max()) < 1
    for row in drawn[:2]:
        assert stats.chisquare(np.bincount((row.numpy() * 256).astype(int), minlength=256)).pvalue > 1e-6
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 5 / math.sqrt(40_000)


@pytest.mark.parametrize(("sign", "fraction"), [(1.0, 1 - 2.0**-16), (-1.0, 0.0)])
def test_unit_whose_norm_rounding_made_too_large_is_rounded_toward_zero(
    sign: float, fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 coordinates of 163.8 steps, all rounded away from zero, would have the norm 16,400 > S."""
    monkeypatch.setattr(clipping, "uniforms", lambda seeds, d, _: torch.full((len(seeds), d), fraction))
    dimension = 10_000
    grid_clipper = clipper(dimension)
    assert 163 < grid_clipper._scaled_norm / 100 < 164 and GRID < 164 * 100
    rows = torch.full((2, dimension), sign, dtype=torch.float32)
    rows[1] = sign * 1e-9  # another row, within the bound, keeps its first rounding
    rounded = grid_clipper.to_grid(rows, [0, 0])
    assert rounded[0].unique().tolist() == [sign * 163]
    assert rounded[1].unique().tolist() == [1 if sign > 0 else -1]


@pytest.mark.parametrize("row", [[1.0] * 16, [3e38] + [0.0] * 15, [1.0] + [0.0] * 15])
def test_unit_whose_norm_stays_too_large_is_dropped(row: list[float]) -> None:
    """The check does not rely on the scaling: with a scale twice too large, no vector of a norm above S is added.

    In the first row each coordinate is within S, and only the norm is too large.
    """
    grid_clipper = clipper(16)
    grid_clipper._scaled_norm *= 2.0
    kept = [0.25] + [0.0] * 15
    assert not grid_clipper.to_grid(torch.tensor([row, kept]), [1, 2])[0].any()
    grid_clipper.add(torch.tensor([row, kept]), [1, 2])
    assert square(grid_clipper.take()) > 0


@pytest.mark.parametrize("value", [1e30, -1e30, math.nan, math.inf, 2.0**62, GRID + 1.0])
def test_coordinate_beyond_the_grid_is_detected_before_it_wraps(value: float) -> None:
    whole, within = clipper(2)._checked(torch.tensor([[value, 0.0], [1.0, 2.0]]))
    assert within.tolist() == [False, True]
    assert whole[1].tolist() == [1, 2]


def test_norm_check_is_exact_at_its_bound() -> None:
    whole = torch.zeros(3, 2)
    whole[0] = torch.tensor([GRID, 0])
    whole[1] = torch.tensor([GRID, 1])
    whole[2] = torch.tensor([math.floor(GRID * 0.6), math.floor(GRID * 0.8)])
    assert clipper(2)._checked(whole)[1].tolist() == [True, False, True]


def test_squares_that_would_overflow_an_int64_are_added_in_pieces() -> None:
    """2^20 coordinates of S = 2^22 square to 2^64, which is 0 in an int64."""
    grid, dimension = 1 << 22, 1 << 20
    grid_clipper = clipper(dimension, grid)
    rows = torch.full((1, dimension), float(grid))
    assert int((rows.long() ** 2).sum()) == 0
    assert grid_clipper._checked(rows)[1].tolist() == [False]
    assert grid_clipper._checked(torch.full((1, dimension), 4096.0))[1].tolist() == [True]
    one_more = torch.full((1, dimension), 4096.0)
    one_more[0, -1] = 4097.0
    assert grid_clipper._checked(one_more)[1].tolist() == [False]


@pytest.mark.parametrize(
    ("dimension", "grid", "message"),
    [
        (10**9, 1 << 14, "too many for a grid"),
        (100, 16, "too many for a grid"),
        (1 << 39, 1 << 22, "overflow 64-bit"),
        (1 << 38, 1 << 22, "overflow 64-bit"),
        # 2^19 pieces of 2^44 each: exactly 2^63, one too large.
        ((1 << 38) - (1 << 19), 1 << 22, "overflow 64-bit"),
    ],
)
def test_gradient_that_the_grid_cannot_hold_is_refused(dimension: int, grid: int, message: str) -> None:
    with pytest.raises(GridTooCoarse, match=message):
        clipper(dimension, grid)


@pytest.mark.parametrize("dimension", [1, 7, 129, 4099, 65_537, 131_073])
def test_integers_of_a_unit_do_not_depend_on_its_neighbours(dimension: int) -> None:
    """The same row and seed give the same integers in any slot, neighbours, row count and alignment (odd d)."""
    generator = torch.Generator().manual_seed(dimension)
    row = torch.randn(dimension, generator=generator) / math.sqrt(dimension) * 1.7
    grid_clipper = clipper(dimension, 1 << 18)
    alone = grid_clipper.to_grid(row.clone().unsqueeze(0), [99])[0]
    others: list[Callable[[], torch.Tensor]] = [
        lambda: torch.randn(dimension, generator=generator),
        lambda: torch.full((dimension,), math.nan),
        lambda: torch.full((dimension,), 3e38),
        lambda: torch.zeros(dimension),
    ]
    for count in (2, 3, 5):
        for slot in range(count):
            block = torch.stack([others[(slot + i) % 4]() for i in range(count)])
            block[slot] = row
            seeds = [*range(slot), 99, *range(slot + 1, count)]
            assert torch.equal(grid_clipper.to_grid(block, seeds)[slot], alone)
    shifted = torch.cat([torch.zeros(1), row]).unsqueeze(0)[:, 1:]
    assert torch.equal(grid_clipper.to_grid(shifted, [99])[0], alone)
