"""Finds operations in which a CPU would compute some records by vector instructions, and others one number at a time.

In: the operations of a pass over a micro-batch. Out: the name of one that depends on the place of a record, or "".

torch computes functions such as tanh-GELU by vector instructions, 64 numbers at most. What is left at the end of a
tensor, or of a thread's part of it, it computes one number at a time, by another function. Some results differ by
rounding, for some functions in 26 of the 65,536 numbers of fp16 only. So no dummy input shows reliably that a shape is
exact. Whether there are such ends depends on shapes alone, and is found here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEP = 64
"""Numbers in a step of a vector loop: two vectors of 512 bits of bf16 or fp16. Other steps are a half or a quarter."""
GRAIN, SLOW_GRAIN = 32_768, 16_384
"""torch gives a thread at least so many numbers. From the second on, it uses all threads for GELU."""
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
        if not is_exact(func, args, kwargs or {}):
            inputs = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
            for output in tree_leaves(result):
                if isinstance(output, torch.Tensor) and output.is_floating_point():
                    call = (func.name(), tuple(output.shape), output.dtype)
                    self.calls.add(call)
                    if not self.uneven and call not in self._own and not is_even(output, inputs):
                        self.uneven = func.name()
        return result


def is_exact(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation gives the same bits in a vector and for a single number, or is no function of numbers."""
    if func.namespace != "aten" or func.is_view:
        return True
    name = func.overloadpacket.__name__.rstrip("_")
    if name in ("add", "sub", "rsub"):
        return bool(kwargs.get("alpha", 1) in (1, -1))
    if name == "pow":
        return args[1] in _EXACT_POWERS if isinstance(args[1], int | float) else False
    if name == "rsqrt":
        return bool(args[0].dtype == torch.float32)  # the others are rounded twice
    if name in EXACT:
        return True
    function = name.removesuffix("_backward").removesuffix("_forward")
    return function not in _NOT_TAGGED and not (_is_pointwise(name) or _is_pointwise(function))


def is_even(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether all parts of a tensor, by thread and by row where it is not contiguous, are whole vector steps."""
    numbers, threads = output.numel(), torch.get_num_threads()
    parts = {1, min(threads, -(-numbers // GRAIN)), threads} if numbers >= SLOW_GRAIN else {1}
    if any(-(-numbers // count) % STEP for count in parts):
        return False
    tensors = (output, *inputs)
    whole = all(each.shape == output.shape and each.is_contiguous() for each in tensors)
    return whole or output.shape[-1] % STEP == 0


def _is_pointwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())
