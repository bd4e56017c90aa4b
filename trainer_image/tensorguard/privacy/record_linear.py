"""Linear layers whose backward pass gives the gradient of each record, in place of the gradient of all.

In: the trainable `nn.Linear` layers of a model. Out: in each backward pass, for each use of a layer, its input and the
gradient of its output. `gradients` multiplies these record by record.

Opacus' hooks give the same products, for more kinds of layers. But for each layer they run some twenty small operations
more, and autograd also computes the gradient of all records together, which is thrown away. A LoRA adapter has hundreds
of small linear layers, so this is up to half the time of a step on a GPU, which waits for the CPU to start its kernels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

Receive = Callable[[str, nn.Linear, torch.Tensor, torch.Tensor], None]
"""Takes a layer's name, the layer, its input [m, ..., in], and the gradient of its output [m, ..., out]."""


class RecordLinear:
    """Replaces the forward pass of each trainable linear layer of `model` until `close`. Numbers do not change.

    Subclasses of `nn.Linear` may compute anything, so they are left alone.

    Attributes:
        layers: those that were replaced.
        enabled: whether `receive` is called. If not, parameters get ordinary gradients.
    """

    def __init__(self, model: nn.Module, receive: Receive) -> None:
        self.layers = {name: module for name, module in model.named_modules() if _is_trainable_linear(module)}
        self.enabled = True
        for name, layer in self.layers.items():
            layer.forward = partial(self._forward, layer, partial(receive, name, layer))

    def close(self) -> None:
        """Give each layer its own forward pass back."""
        for layer in self.layers.values():
            del layer.forward
        self.layers = {}

    def _forward(
        self,
        layer: nn.Linear,
        receive: Callable[[torch.Tensor, torch.Tensor], None],
        input: torch.Tensor,  # noqa: A002  # the name in nn.Linear
    ) -> torch.Tensor:
        if not (self.enabled and torch.is_grad_enabled()):
            return functional.linear(input, layer.weight, layer.bias)
        output: torch.Tensor = _Linear.apply(input, layer.weight, layer.bias, receive)
        return output


def weight_gradients(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """The gradient of a linear layer's weight for each record, [m, out, in].

    It is in memory of its own: on a CPU, a product that is written into a part of other memory may have other bits in
    each row.

    Args:
        inputs: of the layer, [m, n, in], with n positions in each record.
        outputs: gradients of its output, [m, n, out].
    """
    return torch.bmm(outputs.transpose(1, 2), inputs)


def _is_trainable_linear(module: nn.Module) -> bool:
    changed = "forward" in vars(module)  # by another library
    return type(module) is nn.Linear and not changed and any(each.requires_grad for each in module.parameters())


class _Linear(torch.autograd.Function):
    """`functional.linear`, whose backward pass hands over what the gradient of each record is made of."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,  # noqa: A002
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        receive: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        ctx.receive = receive
        return functional.linear(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        inputs, weight = ctx.saved_tensors
        ctx.receive(inputs, gradient)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return gradient.flatten(0, -2).mm(weight).view_as(inputs), None, None, None
