"""A quantised base: the weights of frozen linear layers in four or eight bits.

In: a base model on the CPU, a scheme, and the names of the modules that are trained in full. Out: the same model, whose
other linear layers are `QuantizedLinear`. Then `lora` attaches the adapter, to them as to any `nn.Linear`.

A layer keeps codes and scales, and makes its weight in the model's dtype for one product at a time, in the backward
pass again. Codes and scales are plain parameters whose first dimension is that of the weight, because FSDP2 shards
parameters along it. Each weight depends on codes and scales alone, and inputs are never quantised: a scale for them
would depend on the other records of a batch.

- `NF4`: blocks of 64 numbers of a row share a scale, their largest absolute value. A number becomes the nearest of the
  16 levels of NormalFloat (Dettmers et al., QLoRA, 2023, arXiv:2305.14314, appendix E). Two codes are in one byte.
- `INT8`: a row shares a scale, its largest absolute value divided by 127. A number becomes the nearest multiple of it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tensafe_api.resources.model import Quantization
from tensorguard.models.unsupported import UnsupportedModelError

BLOCK = 64
"""NF4: the number of weights that share a scale. A row of another length is padded with zeros to a multiple of it."""

NF4_LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of a normal distribution, divided by the largest one. Zero is one of them."""

_PIECE = 1 << 22
"""The largest number of weights that are made in fp32 at a time, unless a row has more: 16 MB."""


class QuantizedLinear(nn.Linear):
    """A frozen linear layer with a quantised weight.

    Attributes:
        codes: `NF4`: uint8 [out, 32 * blocks]. `INT8`: int8 [out, in].
        scales: fp32. `NF4`: [out, blocks]. `INT8`: [out, 1].
        bias: as in the layer that it replaces.
        dtype: of the weight that it makes, so of its inputs and outputs.
    """

    def __init__(self, layer: nn.Linear, scheme: Quantization) -> None:
        nn.Module.__init__(self)  # that of nn.Linear would allocate a weight
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype = layer.weight.dtype
        self.scheme = scheme
        pieces = [slice(None)] if layer.weight.is_meta else self._pieces()  # in one go where nothing is computed
        encoded = [_SCHEMES[scheme].encode(layer.weight.detach()[rows].float()) for rows in pieces]
        codes, scales = (torch.cat(parts) for parts in zip(*encoded))
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The weight, [out, in], made again at each access. peft reads its dtype and device. Changes of it are lost."""
        return self.decode(self.codes, self.scales)

    def decode(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The weight in `dtype`, [out, in]. Products of codes and scales are made in fp32, then rounded to `dtype`."""
        weight = torch.empty(self.out_features, self.in_features, dtype=self.dtype, device=codes.device)
        for rows in self._pieces():
            weight[rows] = _SCHEMES[self.scheme].decode(codes[rows], scales[rows])[:, : self.in_features]
        return weight

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # the name in nn.Linear
        """input: `dtype` [..., in]. Returns `dtype` [..., out], as `nn.Linear` with `weight` does, in every bit."""
        output: torch.Tensor = _Product.apply(input, self.codes, self.scales, self.bias, self.decode)
        return output

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scheme={self.scheme}"

    def _pieces(self) -> Iterator[slice]:
        size = max(1, _PIECE // self.in_features)
        for start in range(0, self.out_features, size):
            yield slice(start, start + size)


def quantize(model: PreTrainedModel, scheme: Quantization, trained: Sequence[str]) -> None:
    """Replace the linear layers of `model` by quantised ones, one after the other.

    Not replaced: the output layer, modules inside `trained`, weights that other modules share, and subclasses of
    `nn.Linear`, which may compute anything. The result has the same bits on every machine.

    Raises UnsupportedModelError if the model has GPT-2's Conv1D layers, or no layer that can be quantised.
    """
    for name, module in model.named_modules():
        if isinstance(module, Conv1D):
            raise UnsupportedModelError(
                f"spec.model.quantization is {scheme}, but '{name}' is a Conv1D layer of GPT-2, which cannot be "
                "quantised: remove it, or choose another model."
            )
    names = _quantizable(model, trained)
    if not names:
        raise UnsupportedModelError(
            f"spec.model.quantization is {scheme}, but {type(model).__name__} has no linear layer that can be "
            "quantised: remove it, or choose another model."
        )
    for name in names:  # no list of the layers themselves, so that each weight is freed before the next is encoded
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, QuantizedLinear(_linear(model, name), scheme))


def _quantizable(model: PreTrainedModel, trained: Sequence[str]) -> list[str]:
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    output = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and module is not output
        and not any(f"{name}.".startswith(f"{kept}.") for kept in trained)
        and all(uses[id(parameter)] == 1 for parameter in module.parameters())
    ]


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer


class _Product(torch.autograd.Function):
    """`functional.linear` with a weight that exists only during the call, and again during the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,  # noqa: A002
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        decode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        if ctx.needs_input_grad[0]:
            ctx.decode = decode
            ctx.save_for_backward(codes, scales)
        return functional.linear(input, decode(codes, scales), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        return grad @ ctx.decode(*ctx.saved_tensors), None, None, None, None


@dataclass(frozen=True)
class _Scheme:
    """`encode`: fp32 rows [n, in] to their codes and scales. `decode`: the reverse; its rows may be padded."""

    encode: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    decode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _encode_nf4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    padded = functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    blocks = padded.view(len(rows), -1, BLOCK)
    scales = blocks.abs().amax(dim=-1)
    levels = torch.tensor(NF4_LEVELS, device=rows.device)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(blocks / _without_zeros(scales).unsqueeze(-1), borders, out_int32=True)
    low, high = codes.view(len(rows), -1, 2).to(torch.uint8).unbind(dim=-1)
    return low | high << 4, scales


def _decode_nf4(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    values = functional.embedding(codes.int(), _pairs_of_levels(codes.device))
    return values.view(*scales.shape, BLOCK).mul_(scales.unsqueeze(-1)).view(len(codes), -1)


@functools.cache
def _pairs_of_levels(device: torch.device) -> torch.Tensor:
    """The two numbers of each byte, fp32 [256, 2]: those of its low and of its high four bits."""
    with torch.inference_mode(False):
        levels = torch.tensor(NF4_LEVELS)
        return torch.stack([levels.repeat(16), levels.repeat_interleave(16)], dim=-1).to(device)


def _encode_int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = rows.abs().amax(dim=-1, keepdim=True) / 127
    codes = (rows / _without_zeros(scales)).round()
    return codes.clamp_(-127, 127).to(torch.int8), scales  # the scale of a row of subnormal numbers is not exact


def _decode_int8(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return codes.float().mul_(scales)


def _without_zeros(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales == 0, 1.0, scales)


_SCHEMES: dict[Quantization, _Scheme] = {
    "NF4": _Scheme(_encode_nf4, _decode_nf4),
    "INT8": _Scheme(_encode_int8, _decode_int8),
}
