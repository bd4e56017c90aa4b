"""Finds a model in which tensors have sizes that depend on the values in a batch, and not on its shape alone.

In: a model, a function that runs its forward pass, and a public dummy batch. Out: the name of a module, or "".

`bit_equality` relies on shapes that are public, because the shape selects the kernel and the order of its additions. A
model that groups tokens by what they are pads the groups to the largest number in the batch. One record then changes
the shape in which the others are computed. The values of the two batches here differ as much as they can. That finds
the usual ways to depend on values, but not all: a model may react to one token that is not in the batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tensorguard.privacy.gradients import Batch

_Shapes = dict[str, list[torch.Size]]


def find_value_shape(model: nn.Module, forward: Callable[[Batch], object], batch: Batch) -> str:
    """The first module whose outputs have other shapes if one value is everywhere in `batch`; "" if there is none."""
    repeated = {name: tensor.flatten()[0].expand_as(tensor).clone() for name, tensor in batch.items()}
    mixed, same = (_shapes(model, forward, each) for each in (batch, repeated))
    return next((name for name in mixed | same if mixed.get(name) != same.get(name)), "")


def _shapes(model: nn.Module, forward: Callable[[Batch], object], batch: Batch) -> _Shapes:
    """The shape of each tensor that a module returns, by the module's name, in the order of the calls."""
    shapes: _Shapes = defaultdict(list)
    hooks = [module.register_forward_hook(_record_shape(shapes, name)) for name, module in model.named_modules()]
    try:
        forward(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return dict(shapes)


def _record_shape(shapes: _Shapes, name: str) -> Callable[..., None]:
    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            shapes[name].append(output.shape)

    return hook
