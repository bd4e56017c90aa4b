"""Step 2 of a private step: the gradient of each record by itself.

In: a model whose trainable parameters are fp32, a loss for each record, a micro-batch of fixed shape. Out: fp32
[rows, d], one row a record, in a fixed order of parameters. `privacy.clipping` then bounds each unit.

Opacus' hooks do the work during one backward pass: for a linear layer the gradient of record n is the product of its
own activations and its own output gradients. They are right only while the first dimension of every captured tensor is
the record, and they fail silently where it is not (a layer that a model applies to a shared position table adds all
records' gradients to the first row). So the hooks here check that dimension in every layer, in every pass. They also
empty each parameter's gradients into the result as soon as it is there, so that no second copy of [m, d] exists.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks
from torch import nn

# The lowest LoRA layer's input comes from frozen layers and needs no gradient; the hook has all that it needs.
warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed with respect to")

Batch = Mapping[str, torch.Tensor]
"""Tensors with one row a record. The loss function knows their names; here only their rows matter."""


class _CheckedHooks(GradSampleHooks):
    """Opacus' hooks, which verify that dimension 0 is the record and hand each gradient on at once."""

    def __init__(self, model: nn.Module, take: Callable[[nn.Parameter, torch.Tensor], None]) -> None:
        super().__init__(model, loss_reduction="sum", strict=True)
        self._take = take
        self._names = {id(module): name for name, module in model.named_modules()}
        self.records = 0

    def rearrange_grad_samples(
        self, *, module: nn.Module, backprops: torch.Tensor, **kwargs: Any
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        activations, backprops = super().rearrange_grad_samples(module=module, backprops=backprops, **kwargs)
        sizes = {tensor.shape[0] for tensor in (*activations, backprops)}
        if sizes != {self.records}:
            raise ValueError(
                f"'{self._names[id(module)]}' sees {sorted(sizes)} rows in a batch of {self.records} records: "
                "its gradient cannot be told apart by record, so do not train it."
            )
        return activations, backprops

    def capture_backprops_hook(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().capture_backprops_hook(module, *args, **kwargs)
        if not self.hooks_enabled:
            return
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.grad_sample is not None:
                self._take(parameter, parameter.grad_sample)
                parameter.grad_sample = None


class PerExampleGradients:
    """Per-record gradients of `parameters`, flattened in the order given.

    Args:
        model: stays in train mode; must not already carry Opacus hooks. Its trainable parameters are `parameters`.
        parameters: name and parameter, each fp32 and trainable, as `model.named_parameters()` gives them.
        loss: (model, batch) to a loss for each record, [m], where record i's loss depends on row i alone.
        loss_scale: a static factor for fp16, multiplied onto the losses and divided out here, before any norm.

    `d` is the number of trainable numbers. Where a record's own gradient overflows, its row holds Inf or NaN, and no
    other row does; `clipping` turns such a unit into zero.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[tuple[str, nn.Parameter]],
        loss: Callable[[nn.Module, Batch], torch.Tensor],
        loss_scale: float = 1.0,
    ) -> None:
        trainable = {id(p) for p in model.parameters() if p.requires_grad}
        if trainable != {id(p) for _, p in parameters}:
            raise ValueError("the parameters given are not exactly the trainable parameters of the model.")
        for name, parameter in parameters:
            if parameter.dtype != torch.float32:
                raise ValueError(f"'{name}' is {parameter.dtype}: trainable parameters must be float32.")
        self._model = model
        self._loss = loss
        self._loss_scale = loss_scale
        self.parameters = list(parameters)
        self._slices: dict[int, slice] = {}
        self.dimension = 0
        for _, parameter in parameters:
            self._slices[id(parameter)] = slice(self.dimension, self.dimension + parameter.numel())
            self.dimension += parameter.numel()
        self._device = parameters[0][1].device
        self._buffer = torch.empty(0, self.dimension, device=self._device)
        self._rows = 0
        self._seen: set[int] = set()
        self._hooks = _CheckedHooks(model, self._take)

    def compute(self, batch: Batch, rows: int) -> torch.Tensor:
        """Gradients of the first `rows` records of `batch`; later rows are dummies and are left out.

        Returns: fp32 [rows, d], **valid until the next call**, which writes into the same memory.
        `rows` = 0 (an empty draw) gives [0, d] and leaves the model alone. Raises RuntimeError where a trainable
        parameter took no part, ValueError where a loss or a layer is not per record. `p.grad` is None afterwards.
        """
        if rows == 0:
            return self._buffer[:0]
        if not self._model.training:
            raise RuntimeError("the model is in evaluation mode: call model.train() before computing gradients.")
        self._forget()
        self._reserve(rows)
        losses = self.losses(batch)
        if losses.ndim != 1 or losses.shape[0] < rows:
            raise ValueError(f"the loss has shape {tuple(losses.shape)}; it must be one number for each record.")
        self._hooks.records = losses.shape[0]
        try:
            (losses * self._loss_scale).sum().backward()
        finally:
            self._model.zero_grad(set_to_none=True)
        self._check_complete()
        result = self._buffer[:rows]
        return result if self._loss_scale == 1.0 else result.div_(self._loss_scale)

    def losses(self, batch: Batch) -> torch.Tensor:
        """The loss of each record, [m]; under `torch.no_grad()` nothing is captured."""
        return self._loss(self._model, batch)

    def summed_gradient(self, batch: Batch) -> torch.Tensor:
        """The ordinary gradient of the summed loss of *all* rows, fp32 [d]: one backward pass without hooks.

        For the self test, and as the step without privacy that benchmarks compare with. A parameter without a part in
        the loss has gradient 0. `p.grad` is None afterwards.
        """
        self._hooks.disable_hooks()
        try:
            (self.losses(batch) * self._loss_scale).sum().backward()
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in self.parameters]
            return torch.cat([part.flatten() for part in parts]).div_(self._loss_scale)
        finally:
            self._hooks.enable_hooks()
            self._model.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Take the hooks and all that Opacus hung on the parameters off the model again."""
        self._forget()
        self._hooks.cleanup()

    def _reserve(self, rows: int) -> None:
        self._rows = rows
        if self._buffer.shape[0] < rows:
            self._buffer = torch.empty(rows, self.dimension, device=self._device)

    def _take(self, parameter: nn.Parameter, gradients: torch.Tensor) -> None:
        """Put one layer's gradients [m, *shape] where they belong. A layer used twice in one pass adds up."""
        if gradients.dtype != torch.float32:
            raise RuntimeError(f"a gradient came out as {gradients.dtype}: run the model without autocast.")
        place = self._buffer[: self._rows, self._slices[id(parameter)]]
        own = gradients[: self._rows].reshape(self._rows, -1)
        if id(parameter) in self._seen:
            place.add_(own)
            return
        place.copy_(own)
        self._seen.add(id(parameter))

    def _check_complete(self) -> None:
        for name, parameter in self.parameters:
            if id(parameter) not in self._seen:
                raise RuntimeError(
                    f"'{name}' got no gradient for each record: it takes no part in the loss, "
                    "or gradient checkpointing is not re-entrant."
                )

    def _forget(self) -> None:
        """Drop whatever an earlier pass left half done (an exception, a forward pass without a backward pass)."""
        self._seen.clear()
        for module in self._model.modules():
            own = vars(module)  # peft's wrappers answer `hasattr` for the module inside them
            own.pop("max_batch_len", None)
            if "activations" in own:
                own["activations"] = []
        for _, parameter in self.parameters:
            parameter.grad = parameter.grad_sample = None
            parameter._forward_counter = 0
            if hasattr(parameter, "_current_grad_sample"):
                del parameter._current_grad_sample
