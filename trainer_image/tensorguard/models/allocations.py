"""Counts the bytes of the tensors that are alive while code runs, on torch's device `meta`.

In: code that computes with tensors of that device, which have shapes and no numbers. Out: the largest number of bytes
that its tensors would hold at a time on a CPU or on a GPU. A pass of a model with 40 layers takes a second, and no
memory of that size is needed.

Each operation that torch dispatches is seen here, with its result. The memory of a result counts until its last tensor
is gone. So what autograd keeps for the backward pass, and what a layer frees, follows from the code that runs, and no
list of architectures is needed. Two things that `meta` cannot show are added. Attention would take torch's unfused
path, so `FusedAttention` calls the operation of the kernel that the device takes. Some kernels have large temporary
tensors inside (`_INSIDE`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ATEN: Any = torch.ops.aten

_INSIDE: dict[Any, Callable[[torch.Tensor], int]] = {
    _ATEN.logsumexp.default: lambda scores: scores.nbytes,  # exp(scores - maximum)
}
"""What a kernel allocates for itself, by operation: bytes from its first argument. Measured with torch's profiler."""


class Allocations(TorchDispatchMode):
    """Within this context, counts the bytes of tensors on `meta`.

    Attributes:
        now: bytes that are alive.
        peak: the largest value of `now` so far.
    """

    def __init__(self, ignored: Iterable[torch.Tensor] = ()) -> None:
        """Args:
        ignored: tensors whose memory does not count, such as the model's weights.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {_storage(tensor)._cdata: 0 for tensor in ignored}

    def count(self, tensor: torch.Tensor) -> None:
        """Count the memory of `tensor`, once for all tensors that share it, until the last of them is gone."""
        storage = _storage(tensor)
        if storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = storage.nbytes()
        self._grow(storage.nbytes())
        weakref.finalize(storage, self._forget, storage._cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = _INSIDE.get(func)
        if inside is not None:
            size = inside(args[0])
            self._grow(size)
            self.now -= size
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                self.count(leaf)
        return result

    def _grow(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)

    def _forget(self, address: int) -> None:
        self.now -= self._sizes.pop(address)


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()


class FusedAttention(TorchFunctionMode):
    """Within this context, attention on `meta` is the operation that torch would choose on `device`, "cpu" or "cuda".

    On a GPU a mask rules out all fused kernels but the memory-efficient one, and `models.attention` always gives one.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._kernel = _on_cpu if device == "cpu" else _on_gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """As `functional.scaled_dot_product_attention`, whose arguments these are."""
        mask = attn_mask
        if mask is not None and mask.dtype == torch.bool:
            numbers = torch.zeros_like(mask, dtype=query.dtype)
            mask = numbers.masked_fill_(mask.logical_not(), float("-inf"))
        result = None
        if query.ndim == 4 and not enable_gqa:
            result = self._kernel(query, key, value, mask, dropout_p, is_causal, scale)
        if result is not None:
            return result
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def _on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor | None:
    """The kernel for CPUs; None where it cannot be used."""
    if dropout or query.shape[-1] != value.shape[-1]:
        return None
    result: torch.Tensor = _ATEN._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout, causal, attn_mask=mask, scale=scale
    )[0]
    return result


def _on_gpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor | None:
    """The memory-efficient kernel for GPUs; None where it cannot be used."""
    aligned = 16 // query.element_size()
    if query.shape[-1] % aligned or value.shape[-1] % aligned:
        return None
    if mask is not None:
        keys = mask.shape[-1]
        if keys % 16:  # torch makes a wider copy, so that each row starts at an aligned address
            mask = functional.pad(mask, (0, 16 - keys % 16))[..., :keys]
        mask = mask.expand(*query.shape[:-1], keys)
    result: torch.Tensor = _ATEN._scaled_dot_product_efficient_attention(
        query, key, value, mask, True, dropout, causal, scale=scale
    )[0]
    return result


class FollowsOnly(TorchDispatchMode):
    """Within this context, records whether everything that is computed from `source` has the same values as it."""

    _NEUTRAL = frozenset(
        {"_to_copy", "alias", "clone", "detach", "expand", "lift_fresh", "slice", "view", "_unsafe_view"}
    )

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unchanged = True
        self._derived: set[int] = set()
        self._alive: list[torch.Tensor] = []

    def follow(self, source: torch.Tensor) -> torch.Tensor:
        """Follow this tensor. Returns it."""
        self._alive.append(source)  # an address must not be used again
        self._derived.add(_storage(source)._cdata)
        return source

    def follows(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is followed."""
        return _storage(tensor)._cdata in self._derived

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        if any(map(self.follows, tensors)):
            self.unchanged &= func.overloadpacket.__name__ in self._NEUTRAL
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.follow(leaf)
        return result
