"""Finds operations in which a CPU would compute some records by vector instructions, and others one number at a time.

In: the operations of a pass over a micro-batch. Out: the name of one that depends on the place of a record, or "".

torch computes functions such as tanh-GELU by vector instructions, in steps of 64 numbers at most. What is left at the
end of a tensor, or of a thread's part of it, it computes one number at a time, by another function. Some results differ
by rounding, for some functions in 26 of the 65,536 numbers of fp16 only. So no dummy input shows reliably that a shape
is exact. Whether there are such ends depends on shapes alone, and is found here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEP_BYTES = 128
"""The longest step of a vector loop: two vectors of 512 bits. Other steps are a half or a quarter."""
GRAIN, GELU_GRAIN = 32_768, 16_384
"""torch gives a thread at least so many numbers. GELU, but not its gradient, takes all threads above the second."""
EXACT = frozenset(
    [
        "abs", "neg", "sgn", "sign", "signbit", "copysign",
        "add", "sub", "mul", "div", "square", "sqrt", "reciprocal",
        "ceil", "floor", "round", "trunc", "clamp", "clamp_max", "clamp_min", "maximum", "minimum",
        "relu", "threshold", "threshold_backward", "where", "masked_fill", "fill", "clone", "nan_to_num",
        "eq", "ne", "lt", "le", "gt", "ge", "isfinite", "isinf", "isnan",
        "logical_and", "logical_not", "logical_or", "logical_xor",
    ]
)  # fmt: skip
"""Functions whose results IEEE 754 determines, so that all ways to compute them give the same bits."""
_EXACT_OF_COMPLEX = frozenset(["add", "sub", "neg", "eq", "ne", "where", "masked_fill", "fill", "clone", "complex"])
ALIKE = frozenset(["tanh", "tanh_backward", "exp", "log", "sin", "cos", "erf"])
"""Functions of which torch computes the end by the same vector instructions."""
_EXACT_POWERS = (0, 1, 2, 3)
_NOT_TAGGED = frozenset(["celu", "glu", "hardswish", "log_sigmoid", "prelu", "_prelu_kernel", "rrelu_with_noise"])
"""Functions of single numbers that torch does not tag as such."""

Call = tuple[str, tuple[int, ...], torch.dtype]


class VectorTails(TorchDispatchMode):
    """Records calls of operations while it is entered.

    Args:
        own: the calls of a pass over one record. The same call in a pass over more records computes one record, or
            what all of them share, such as the angles of positions.
    """

    def __init__(self, own: VectorTails | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: set[Call] = set()
        self.uneven = ""
        """The first operation whose result for a record may depend on the record's place."""
        self._own = own.calls if own is not None else set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        outputs = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        if not is_exact(func, args, kwargs or {}, any(each.is_complex() for each in (*inputs, *outputs))):
            for output in outputs:
                if output.is_floating_point() or output.is_complex():
                    call = (func.name(), tuple(output.shape), output.dtype)
                    self.calls.add(call)
                    if not self.uneven and call not in self._own and not is_even(output, inputs, func.name()):
                        self.uneven = func.name()
        return result


def is_exact(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], of_complex: bool) -> bool:
    """Whether an operation gives the same bits in a vector and for a single number, or is no function of numbers."""
    if func.namespace != "aten" or func.is_view:
        return True
    name = func.overloadpacket.__name__.rstrip("_")
    if name in ("add", "sub", "rsub"):
        return bool(kwargs.get("alpha", 1) in (1, -1))
    if of_complex:
        return name in _EXACT_OF_COMPLEX or not _is_function_of_numbers(name)
    if name == "pow":
        return args[1] in _EXACT_POWERS if isinstance(args[1], int | float) else False
    if name == "rsqrt":
        return bool(args[0].dtype == torch.float32)  # the others are rounded twice
    return name in EXACT or name in ALIKE or not _is_function_of_numbers(name)


def is_even(output: torch.Tensor, inputs: Sequence[torch.Tensor], name: str) -> bool:
    """Whether all parts of a tensor, by thread and by row where it is not contiguous, are whole vector steps.

    Args:
        name: the operation, such as "aten::gelu".
    """
    tensors = [each for each in (output, *inputs) if each.numel() > 1]
    step = STEP_BYTES // min((each.element_size() for each in tensors if not _is_mask(each)), default=STEP_BYTES)
    numbers, threads = output.numel(), torch.get_num_threads()
    if name in ("aten::gelu", "aten::gelu_"):  # not its gradient
        parts = threads if numbers > GELU_GRAIN else 1
    else:
        parts = max(1, min(threads, -(-numbers // GRAIN)))
    if any(-(-numbers // count) % step for count in {1, parts}):
        return False
    if all(each.shape == output.shape and each.is_contiguous() for each in tensors):
        return True
    return not any(row % step for each in tensors for row in _rows(each))


def _rows(tensor: torch.Tensor) -> list[int]:
    """How many numbers follow each other in the memory of a tensor, at least."""
    if tensor.is_contiguous():
        return [tensor.shape[-1]]
    return [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride == 1 and size > 1]


def _is_mask(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


@cache
def _is_function_of_numbers(name: str) -> bool:
    function = name.removesuffix("_backward").removesuffix("_forward")
    return function in _NOT_TAGGED or _is_pointwise(name) or _is_pointwise(function)


def _is_pointwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())
