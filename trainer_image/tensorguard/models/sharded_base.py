"""Shards the frozen base model over the workers, so that no worker has to hold all of it.

In: a peft model and the workers' process group. Out: the same model, of which each worker keeps one part of each
layer's frozen weights. PyTorch's FSDP2 gathers a layer's weights when a pass needs them and frees them afterwards. The
trained parameters stay whole on every worker and out of FSDP2. So only public weights travel here, and the gradients of
records leave a worker through the secure aggregation alone.

FSDP2 gathers in collectives, so all workers must run the same number of passes. Workers draw different numbers of
records. They agree on the largest number of micro-batches in each step (`BaseSharding.largest`), and a worker with
fewer adds dummies, whose gradients are exactly 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from peft import PeftModel
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from tensorguard.models.lora import adapter_parameters
from tensorguard.models.sketch import Place, Sketch
from tensorguard.models.weight_files import WeightFiles

# The output of a pass may be a view of its hidden states. Nothing here changes an output in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

SHARED_PASSES_REMARK = (
    "The workers share the base model and run the same number of passes, so each worker learns the largest number of "
    "micro-batches that any worker has in a step."
)


@dataclass(frozen=True)
class BaseSharding:
    """The workers that share one base model. `mesh` is torch's description of their process group."""

    mesh: DeviceMesh

    @classmethod
    def over_all_ranks(cls, device: torch.device) -> BaseSharding:
        """All ranks of the default process group share the base. Call on every rank."""
        return cls(init_device_mesh(device.type, (dist.get_world_size(),)))

    def shard(self, model: PeftModel, device: torch.device, sketch: Sketch | None = None) -> None:
        """Replace each frozen weight of the base by this worker's rows of it, on `device`. Call on every rank.

        Weights on the CPU move to `device` one layer at a time. The weights of a `sketch` are read from their files:
        this worker's rows only. Afterwards the trained parameters are on `device` too.
        """
        kept = adapter_parameters(model) | {parameter for parameter in model.parameters() if not parameter.ndim}
        for parameter in kept:
            parameter.data = parameter.data.to(device)
        if sketch is not None:
            _replace(sketch.names, lambda placeholder, _name: torch.empty_like(placeholder, device="meta"))
        for layer in _layers(model):
            fully_shard(layer, mesh=self.mesh, ignored_params=kept)
        fully_shard(model, mesh=self.mesh, ignored_params=kept)
        if sketch is not None:
            _replace(sketch.names, lambda part, name: self._read(sketch.files, name, part, device))

    def _read(self, files: WeightFiles, name: str, part: Any, device: torch.device) -> torch.Tensor:
        """`part`, a DTensor without numbers, with this worker's rows of the weight."""
        rows = -(-part.shape[0] // self.mesh.size())  # of every worker but the last ones
        start = self.mesh.get_local_rank() * rows
        local = files.read(name, start, start + len(part.to_local())).to(device, part.dtype)
        return DTensor.from_local(local, self.mesh, part.placements, shape=part.shape, stride=part.stride())

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """The largest value of each number over the workers. Call on every rank."""
        device = torch.device(self.mesh.device_type)
        carrier = torch.tensor(numbers, dtype=torch.int64, device=device)
        dist.all_reduce(carrier, op=dist.ReduceOp.MAX, group=self.mesh.get_group())
        return tuple(carrier.tolist())


def _replace(names: Mapping[Place, str], change: Callable[[torch.Tensor, str], torch.Tensor]) -> None:
    """Replace each parameter by the result of `change`. Tied weights stay tied."""
    made: dict[int, nn.Parameter] = {}
    old = {place: getattr(*place) for place in names}
    for (module, attribute), name in names.items():
        before = old[module, attribute]
        if id(before) not in made:
            made[id(before)] = nn.Parameter(change(before, name), requires_grad=False)
        setattr(module, attribute, made[id(before)])


def recover_from_failed_pass(model: nn.Module) -> None:
    """Let a model run again after a forward pass that raised. Nothing to do unless its base is sharded."""
    if isinstance(model, FSDPModule):
        model.reset_iter_state()


def _layers(model: PeftModel) -> Iterator[nn.Module]:
    """The layers of the base, each of which is gathered as a whole: those that transformers keeps on one device."""
    base: PreTrainedModel = model.get_base_model()  # type: ignore[assignment]
    names = set(base._no_split_modules or ())
    inside: set[int] = set()
    for module in model.modules():
        if type(module).__name__ in names and id(module) not in inside:
            inside.update(id(part) for part in module.modules())
            yield module
