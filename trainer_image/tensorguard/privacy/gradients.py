"""Computes per-example gradients: part 2 of a step.

In: a model whose trainable parameters are fp32, a loss for each record, a micro-batch of fixed shape. Out: fp32
[rows, d], one row for each record, in a fixed order of parameters. `privacy.clipping` then bounds each unit.

The gradients are computed during one backward pass: for a linear layer, the gradient of record n is the product of its
own activations and its own output gradients. `record_linear` gives these for linear layers, such as LoRA's factors, and
Opacus' hooks do for all others. This is correct only if the first dimension of both is the record. Otherwise it would
fail silently: a layer that a model applies to a shared position table adds the gradients of all records to the first
row. So that dimension is checked in every layer and in every pass. Each layer's gradients go into the result
immediately, so that no second copy of [m, d] exists.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks
from torch import nn

from tensorguard.privacy.record_linear import RecordLinear, weight_gradients

# The input of the lowest LoRA layer comes from frozen layers and needs no gradient. The hook works without it.
warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed with respect to")

Batch = Mapping[str, torch.Tensor]
"""Tensors with one row for each record. The loss function knows their names; this module uses only their rows."""


class NotByRecordError(ValueError):
    """A trained layer has no gradient for each record. The message names the layer and the fix."""


class _CheckedHooks(GradSampleHooks):  # type: ignore[misc]  # Opacus has no types
    """Opacus' hooks, which also have the rows of each layer checked and pass each gradient on immediately."""

    def __init__(
        self,
        model: nn.Module,
        without: Iterable[nn.Module],
        check_rows: Callable[[str, Iterable[torch.Tensor]], None],
        take: Callable[[nn.Parameter, torch.Tensor], None],
    ) -> None:
        """Add hooks to each trainable layer of `model` that is not in `without`."""
        self._without = set(without)
        self._check_rows = check_rows
        self._take = take
        self._names = {module: name for name, module in model.named_modules()}
        super().__init__(model, loss_reduction="sum", strict=True)
        self.modules = list(self.iterate_submodules(model))

    def iterate_submodules(self, module: nn.Module) -> Iterator[nn.Module]:
        return (each for each in super().iterate_submodules(module) if each not in self._without)

    def rearrange_grad_samples(
        self, *, module: nn.Module, backprops: torch.Tensor, **kwargs: Any
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        activations, backprops = super().rearrange_grad_samples(module=module, backprops=backprops, **kwargs)
        self._check_rows(self._names[module], (*activations, backprops))
        return activations, backprops

    def capture_backprops_hook(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().capture_backprops_hook(module, *args, **kwargs)
        if not self.hooks_enabled:
            return
        parameters: Iterable[Any] = module.parameters()  # Opacus adds `grad_sample` to each
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad_sample is not None:
                self._take(parameter, parameter.grad_sample)
                parameter.grad_sample = None


class PerExampleGradients:
    """Per-example gradients of `parameters`, flattened in the given order.

    Args:
        model: must be in training mode and must not have Opacus hooks yet. Its trainable parameters are `parameters`.
        parameters: name and parameter, each fp32 and trainable, as `model.named_parameters()` gives them.
        loss: maps (model, batch) to a loss for each record, [m]. The loss of record i must depend on row i alone.
        loss_scale: a static factor for fp16. The losses are multiplied by it, and the gradients are divided by it here,
            before any norm is computed.

    `dimension` is d, the number of trained coordinates. If the gradient of a record overflows, its row has Inf or NaN,
    and no other row is affected. `clipping` sets such a unit to zero.
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
        self._records = 0
        self._seen: set[int] = set()
        self._linear = RecordLinear(model, self._take_linear)
        self._hooks = _CheckedHooks(model, self._linear.layers.values(), self._check_rows, self._take)

    def compute(self, batch: Batch, rows: int, losses_into: list[float] | None = None) -> torch.Tensor:
        """Gradients of the first `rows` records of `batch`. Later rows are dummies and are left out.

        Args:
            losses_into: if given, the losses of these records are appended. They are private.

        Returns: fp32 [rows, d], **valid until the next call**, which writes into the same memory. `rows` = 0 (dummies
        only) gives [0, d]. `p.grad` is None afterwards.

        Raises:
            NotByRecordError: if a trainable parameter takes no part in the loss, or a layer is not per record.
            ValueError: if the loss is not per record.
        """
        if not self._model.training:
            raise RuntimeError("the model is in evaluation mode: call model.train() before computing gradients.")
        self._clear()
        losses = self.losses(batch)
        if losses.ndim != 1 or losses.shape[0] < rows:
            raise ValueError(f"the loss has shape {tuple(losses.shape)}; it must be one number for each record.")
        if losses_into is not None:
            losses_into += losses[:rows].tolist()
        self._reserve(losses.shape[0])
        try:
            (losses * self._loss_scale).sum().backward()
        finally:
            self._zero_grad()
        self._check_complete()
        result = self._buffer[:rows]
        return result if self._loss_scale == 1.0 else result.div_(self._loss_scale)

    def losses(self, batch: Batch) -> torch.Tensor:
        """The loss of each record, [m]. Under `torch.no_grad()` the hooks capture nothing."""
        return self._loss(self._model, batch)

    def summed_gradient(self, batch: Batch) -> torch.Tensor:
        """The ordinary gradient of the summed loss of *all* rows, fp32 [d], in one backward pass without hooks.

        The self-test compares with it, and benchmarks use it as a step without privacy. A parameter that takes no part
        in the loss has gradient 0. `p.grad` is None afterwards.
        """
        self._hooks.disable_hooks()
        self._linear.enabled = False
        try:
            (self.losses(batch) * self._loss_scale).sum().backward()
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in self.parameters]
            return torch.cat([part.flatten() for part in parts]).div_(self._loss_scale)
        finally:
            self._hooks.enable_hooks()
            self._linear.enabled = True
            self._zero_grad()

    def close(self) -> None:
        """Remove the hooks, and the attributes that Opacus added to the parameters."""
        self._clear()
        self._hooks.cleanup()
        self._linear.close()

    def _reserve(self, records: int) -> None:
        self._records = records
        if self._buffer.shape[0] < records:
            self._buffer = torch.empty(records, self.dimension, device=self._device)

    def _check_rows(self, layer: str, tensors: Iterable[torch.Tensor]) -> None:
        """Raise NotByRecordError unless dimension 0 of each of `tensors` is the record."""
        sizes = {tensor.shape[0] for tensor in tensors}
        if sizes != {self._records}:
            raise NotByRecordError(
                f"'{layer}' sees {sorted(sizes)} rows in a batch of {self._records} records, so its gradient cannot be "
                "separated by record: leave it out of spec.lora.targetModules, or choose another spec.model.name."
            )

    def _take_linear(self, name: str, layer: nn.Linear, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Store the gradients of a linear layer. All records of the batch are computed, whatever `rows` is, so that
        the shape of the product and with it the bits of a record's gradient are the same in every pass.
        """
        self._check_rows(name, (inputs, outputs))
        inputs, outputs = (each.reshape(self._records, -1, each.shape[-1]) for each in (inputs, outputs))
        if layer.weight.requires_grad:
            self._take(layer.weight, weight_gradients(inputs, outputs))
        if layer.bias is not None and layer.bias.requires_grad:
            self._take(layer.bias, outputs.sum(dim=1))

    def _take(self, parameter: torch.Tensor, gradients: torch.Tensor) -> None:
        """Store one layer's gradients [m, *shape]. The gradients of a layer that is used twice in a pass are added."""
        if gradients.dtype != torch.float32:
            raise RuntimeError(f"a gradient came out as {gradients.dtype}: run the model without autocast.")
        columns = self._buffer[: self._records, self._slices[id(parameter)]]
        rows = gradients.flatten(start_dim=1)
        if id(parameter) in self._seen:
            columns.add_(rows)
            return
        columns.copy_(rows)
        self._seen.add(id(parameter))

    def _check_complete(self) -> None:
        for name, parameter in self.parameters:
            if id(parameter) not in self._seen:
                raise NotByRecordError(
                    f"'{name}' got no gradient for each record. Its layer takes no part in the loss, or the model "
                    "recomputes it in an unusual way: leave it out of spec.lora.targetModules, or set "
                    "spec.training.gradientCheckpointing to false."
                )

    def _zero_grad(self) -> None:
        for _, parameter in self.parameters:
            parameter.grad = None

    def _clear(self) -> None:
        """Remove what an incomplete pass left, after an exception or a forward pass without a backward pass."""
        self._seen.clear()
        self._zero_grad()
        for module in self._hooks.modules:
            attributes = vars(module)  # `hasattr` of a peft wrapper also finds attributes of the module inside it
            attributes.pop("max_batch_len", None)
            if "activations" in attributes:
                attributes["activations"] = []
            parameters: Iterable[Any] = module.parameters()
            for parameter in parameters:
                parameter.grad_sample = None
                parameter._forward_counter = 0
                if hasattr(parameter, "_current_grad_sample"):
                    del parameter._current_grad_sample
