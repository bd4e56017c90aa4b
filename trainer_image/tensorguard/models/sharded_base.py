"""Shards the frozen base model over several ranks, so that no rank has to hold all of it.

In: a peft model and the ranks' process group. Out: the same model, of which each rank keeps one part of each layer's
frozen weights. PyTorch's FSDP2 gathers a layer's weights when a pass needs them and frees them afterwards. The trained
parameters stay whole on every rank and out of FSDP2. So only public weights travel here, and the gradients of records
leave a rank through the secure aggregation alone.

FSDP2 gathers in collectives, so all ranks must run the same number of passes. Ranks draw different numbers of records.
They agree on the largest number of micro-batches in each step (`BaseSharding.largest`), and a rank with fewer adds
dummies, whose gradients are exactly 0.
"""

from __future__ import annotations

import hashlib
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from peft import PeftModel
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from tensafe_api.reasons import Reason
from tensorguard.models.deferred_model import DeferredModel, Place
from tensorguard.models.lora import adapter_parameters
from tensorguard.models.weight_files import WeightFiles

# The output of a pass may be a view of its hidden states. Nothing here changes an output in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

TIMEOUT = timedelta(minutes=10)
_TEXT_BYTES = 512
SHARED_PASSES_REMARK = (
    "The workers share the base model and run the same number of passes, so each worker learns the largest number of "
    "micro-batches that any of them has in a step."
)


class ShardingError(RuntimeError):
    """The ranks cannot share a base model. `str()` is a sentence."""

    reason: ClassVar[Reason] = Reason.RESOURCES_MISSING


@dataclass(frozen=True)
class BaseSharding:
    """The ranks that share one base model. `mesh` is torch's description of their process group."""

    mesh: DeviceMesh

    @classmethod
    def of(cls, sharing: int, device: torch.device) -> BaseSharding:
        """Groups of `sharing` consecutive ranks of the default process group share a base. Call on every rank.

        Weights travel in a process group of their own. So a message of the default group, such as the failure of a
        rank, never meets a weight. A rank that waits for one that has failed gives up after `TIMEOUT`.
        """
        group, _ = dist.new_subgroups(sharing, timeout=TIMEOUT)
        return cls(DeviceMesh.from_group(group, device.type))

    def check_one_machine(self) -> None:
        """Check that the ranks are on one machine, or in one pod. Call on every rank.

        Raises:
            ShardingError: they are not, so weights would be gathered over a slow network.
        """
        host = int.from_bytes(hashlib.sha256(socket.gethostname().encode()).digest()[:7], "big")
        if self.largest(host, -host) != (host, -host):
            raise ShardingError(
                "spec.model.sharding: Ray placed the GPUs of one worker on different machines: give each worker of the "
                "Ray cluster exactly spec.cluster.worker.gpus GPUs"
            )

    def shard(self, model: PeftModel, device: torch.device, deferred: DeferredModel | None = None) -> None:
        """Replace each frozen weight of the base by this rank's rows of it, on `device`. Call on every rank.

        Weights on the CPU move to `device` one layer at a time. Those of a `deferred` model are read from their files:
        this rank's rows only. Afterwards the trained parameters are on `device` too.
        """
        kept = adapter_parameters(model) | {parameter for parameter in model.parameters() if not parameter.ndim}
        for parameter in kept:
            parameter.data = parameter.data.to(device)
        if deferred is not None:
            _replace(deferred.names, lambda placeholder, _name: torch.empty_like(placeholder, device="meta"))
        for layer in layers_of(model):
            fully_shard(layer, mesh=self.mesh, ignored_params=kept)
        fully_shard(model, mesh=self.mesh, ignored_params=kept)
        if deferred is not None:
            _replace(deferred.names, lambda part, name: self._read(deferred.files, name, part, device))

    def _read(self, files: WeightFiles, name: str, part: Any, device: torch.device) -> torch.Tensor:
        """`part`, a DTensor without numbers, with this rank's rows of the weight."""
        rows = -(-part.shape[0] // self.mesh.size())  # of every rank but the last ones
        start = self.mesh.get_local_rank() * rows
        local = files.read(name, start, start + len(part.to_local())).to(device, part.dtype)
        return DTensor.from_local(local, self.mesh, part.placements, shape=part.shape, stride=part.stride())

    def first(self, text: str) -> str:
        """The text of the first of the ranks that share the base whose text is not empty. Call on every rank."""
        device = torch.device(self.mesh.device_type)
        own = torch.tensor(list(text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)), dtype=torch.uint8, device=device)
        all_of_them = torch.empty(self.mesh.size() * _TEXT_BYTES, dtype=torch.uint8, device=device)
        dist.all_gather_into_tensor(all_of_them, own, group=self.mesh.get_group())
        texts = (bytes(each.tolist()).decode(errors="ignore").rstrip() for each in all_of_them.split(_TEXT_BYTES))
        return next(filter(None, texts), "")

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """The largest value of each number over the ranks that share the base. Call on every rank."""
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


def layers_of(model: PeftModel) -> Iterator[nn.Module]:
    """The layers of the base, each of which is gathered as a whole: those that transformers keeps on one device."""
    base: PreTrainedModel = model.get_base_model()  # type: ignore[assignment]
    names = set(base._no_split_modules or ())
    inside: set[int] = set()
    for module in model.modules():
        if type(module).__name__ in names and id(module) not in inside:
            inside.update(id(part) for part in module.modules())
            yield module
