"""No bit of a record's gradient depends on which of its numbers a CPU computes by vector instructions.

What counts as exact has the same bits in a vector and alone. Where the shape of another operation counts as even, equal
numbers in a whole tensor give equal results.
"""

import random
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tensorguard.data.rows import TokenRows
from tensorguard.models import simd_remainder
from tensorguard.models.self_test import SelfTest, dummy_batches
from tensorguard.models.simd_remainder import ALIKE, EXACT, VectorTails, is_even

Function = Callable[[torch.Tensor], torch.Tensor]
aten = torch.ops.aten
ALONE = 15
"""So few numbers fill no step of a vector loop."""
OF_TWO = {"add", "copysign", "div", "eq", "ge", "gt", "le", "logical_and", "logical_or", "logical_xor", "lt", "maximum"}
OF_TWO |= {"minimum", "mul", "ne", "sub"}
WITH_ARGUMENTS: dict[str, Function] = {
    "clamp": lambda x: aten.clamp(x, -0.3, 0.7),
    "clamp_max": lambda x: aten.clamp_max(x, 0.7),
    "clamp_min": lambda x: aten.clamp_min(x, -0.3),
    "fill": lambda x: aten.fill(x, 0.3),
    "masked_fill": lambda x: aten.masked_fill(x, x > 0, 0.3),
    "tanh_backward": lambda x: aten.tanh_backward(0.3 - x, x),
    "threshold": lambda x: aten.threshold(x, 0.1, 0.3),
    "threshold_backward": lambda x: aten.threshold_backward(x, 0.3 - x, 0.1),
    "where": lambda x: aten.where(x > 0, x, -x),
    "pow": lambda x: torch.cat([aten.pow(x, each).unsqueeze(1) for each in (0, 1, 2, 3)], dim=1),
}
ROUNDED: dict[str, Function] = {
    "add with alpha": lambda x: torch.add(x, x, alpha=0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "celu": functional.celu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "glu": functional.glu,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "leaky_relu": functional.leaky_relu,
    "lerp": lambda x: torch.lerp(x, -x, 0.3),
    "logsigmoid": functional.logsigmoid,
    "mish": functional.mish,
    "power": lambda x: x.abs() ** 1.5,
    "prelu": lambda x: functional.prelu(x, x.detach()[0, :1]),
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "tanh-gelu": lambda x: functional.gelu(x, approximate="tanh"),
}
WITHOUT_OWN_GRADIENT = {"add with alpha", "addcmul", "lerp", "power"}


def numbers_of(dtype: torch.dtype) -> torch.Tensor:
    """All finite numbers of a 16-bit type, or 18,000 of fp32."""
    if dtype == torch.float32:
        generator = torch.Generator().manual_seed(0)
        found = torch.cat([torch.randn(2048, generator=generator) * 10.0**scale for scale in range(-4, 5)])
    else:
        found = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        found = found[torch.isfinite(found)]
    return found[: len(found) // (64 * ALONE) * 64 * ALONE]


@pytest.mark.parametrize(
    "dtype", [torch.float32, *(pytest.param(each, marks=pytest.mark.slow) for each in (torch.bfloat16, torch.float16))]
)
@pytest.mark.parametrize("name", sorted(EXACT | ALIKE | {"pow"}))
def test_exact_function_has_the_same_bits_in_a_vector_and_alone(
    name: str, dtype: torch.dtype, one_thread: None
) -> None:
    call = getattr(aten, name)
    function = WITH_ARGUMENTS.get(name) or ((lambda x: call(x, 0.3 - x)) if name in OF_TWO else call)
    numbers = numbers_of(dtype)
    alone = torch.cat([function(each) for each in numbers.split(ALONE)])
    assert torch.equal(alone.nan_to_num(9.0), function(numbers).nan_to_num(9.0))


def test_reciprocal_root_is_exact_in_fp32_alone(one_thread: None) -> None:
    """In 16-bit types it is rounded twice in one of both ways."""
    numbers = numbers_of(torch.float32)
    alone = torch.cat([torch.rsqrt(each) for each in numbers.split(ALONE)])
    assert torch.equal(alone.nan_to_num(9.0), torch.rsqrt(numbers).nan_to_num(9.0))
    uneven = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        with VectorTails() as tails:
            torch.rsqrt(torch.ones(3, 34, dtype=dtype))
        uneven[dtype] = tails.uneven
    assert list(uneven.values()) == ["", "aten::rsqrt", "aten::rsqrt"]


@pytest.mark.parametrize("name", sorted(ROUNDED))
def test_function_that_may_round_is_found(name: str) -> None:
    with VectorTails() as tails:
        ROUNDED[name](torch.randn(3, 34))
    assert tails.uneven


@pytest.mark.parametrize("name", sorted(set(ROUNDED) - WITHOUT_OWN_GRADIENT))
def test_gradient_that_may_round_is_found(name: str) -> None:
    result = ROUNDED[name](torch.randn(3, 34, requires_grad=True))
    with VectorTails() as tails:
        result.sum().backward()
    assert "backward" in tails.uneven


OF_ROUNDED_NUMBERS: list[tuple[str, Function, torch.dtype]] = [
    ("aten::gelu_backward", lambda x: aten.gelu_backward(0.3 - x, x, approximate="tanh"), torch.float16),
    ("aten::gelu", ROUNDED["tanh-gelu"], torch.float16),
    ("aten::silu", functional.silu, torch.float32),
    ("aten::silu_backward", lambda x: aten.silu_backward(0.3 - x, x), torch.float32),
    ("aten::mish_backward", lambda x: aten.mish_backward(0.3 - x, x), torch.float32),
    ("aten::softplus", functional.softplus, torch.float32),
    ("aten::elu", functional.elu, torch.float32),
    ("aten::rsqrt", torch.rsqrt, torch.bfloat16),
    ("aten::mul.Tensor", lambda x: x * x, torch.complex64),
]
"""The first, on three threads, notices each mistake in `tests/mutants` that any of them notices: the rest is slow."""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 4))])
@pytest.mark.parametrize(
    ("name", "function", "dtype"),
    [OF_ROUNDED_NUMBERS[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in OF_ROUNDED_NUMBERS[1:])],
)
def test_equal_numbers_give_equal_results_in_even_shapes_alone(
    name: str, function: Function, dtype: torch.dtype, threads: int, one_thread: None
) -> None:
    """With a number that a vector rounds otherwise. A CPU without vectors has none."""
    if dtype.is_complex:
        numbers = torch.complex(numbers_of(torch.float32), numbers_of(torch.float32).flip(0))
    else:
        numbers = numbers_of(dtype)
    alone = torch.cat([function(each) for each in numbers.split(7)])
    differing = numbers[(function(numbers) != alone) & ~alone.isnan()]
    if not len(differing):
        pytest.skip("this CPU rounds all numbers alike")
    draw, found = random.Random(threads), {True: 0, False: 0}
    torch.set_num_threads(threads)
    try:
        for _ in range(100):
            widths = [20, 96, 128, 250, 256, 320, 336, 512]
            shape = (draw.randint(1, 12), draw.choice([5, 16, 33, 64, 100]), draw.choice(widths))
            whole = differing[0].repeat(shape)
            half = whole[..., : shape[-1] // 2]
            for tensor in (whole, half, whole.transpose(0, 1), half.transpose(1, 2)):
                result = function(tensor)
                is_equal = len(torch.view_as_real(result).unique(dim=0) if dtype.is_complex else result.unique()) == 1
                assert is_equal or not is_even(result, [tensor], name)
                found[is_equal] += 1
    finally:
        torch.set_num_threads(1)
    assert all(found.values())


def test_calls_on_one_record_at_a_time_and_on_what_all_share_are_left_out() -> None:
    with VectorTails() as own:
        torch.sigmoid(torch.randn(1, 17))
    with VectorTails(own) as tails:
        for _ in range(3):
            torch.sigmoid(torch.randn(1, 17))
    assert tails.uneven == ""
    with VectorTails(own) as tails:
        torch.sigmoid(torch.randn(3, 17))
    assert tails.uneven == "aten::sigmoid"


@pytest.mark.parametrize(
    ("function", "uneven"),
    [
        (lambda x: x * x, "aten::mul.Tensor"),
        (lambda x: x.abs(), "aten::abs"),
        (lambda x: 1 / x, "aten::reciprocal"),
        (lambda x: x + x, ""),
    ],
)
def test_products_of_complex_numbers_may_round(function: Function, uneven: str) -> None:
    """Such as those of the rotary positions of Llama 4 and DeepSeek."""
    with VectorTails() as tails:
        function(torch.randn(3, 17, dtype=torch.complex64))
    assert tails.uneven == uneven


@pytest.mark.slow
def test_self_test_names_the_operation_and_does_not_call_the_shape_bit_equal(trained, one_thread, monkeypatch) -> None:
    """On a CPU with vectors of 1,536 bits, the tiny Llama's SiLU of 2 records would end within one, and of 3 not."""
    monkeypatch.setattr(simd_remainder, "STEP_BYTES", 384)
    model = trained("llama")

    def report(rows: int) -> SelfTest:
        return model.self_test(dummy_batches(model.task, TokenRows(16, 0, 97), rows=rows, length=16))

    assert [(report(rows).uneven, report(rows).bit_equal) for rows in (1, 3)] == [("", True)] * 2
    odd = report(2)
    assert (odd.uneven, odd.neighbour_error, odd.bit_equal) == ("aten::silu", 0.0, False)
