"""How the workers of one job talk to each other: messages of fixed length, and one integer sum.

Everything goes through torch.distributed (gloo on CPUs, NCCL on GPUs) as tensors of bytes or of int32, so nothing that
comes from a peer is ever unpickled. `torch.distributed`'s own object collectives pickle, and are not used.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist

from tensafe_api.reasons import Reason


class AggregationError(RuntimeError):
    """The workers could not agree, or a sum is not what its parts say. Nothing was revealed, or what was is discarded;
    the step stays charged.
    """

    reason: ClassVar[Reason] = Reason.AGGREGATION_FAILED


class Channel(Protocol):
    """What aggregation needs of a group of workers."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, message: bytes) -> list[bytes]:
        """Every worker's message, by rank. All must have the same length."""
        ...

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        """The sum of every worker's uint32 [d] modulo 2^32."""
        ...


class ProcessGroupChannel:
    """The default torch.distributed group, which must exist."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def all_gather(self, message: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(self._device)
        everyones = torch.empty(self.size * len(message), dtype=torch.uint8, device=self._device)
        dist.all_gather_into_tensor(everyones, mine)
        joined = everyones.cpu().numpy().tobytes()
        return [joined[start : start + len(message)] for start in range(0, len(joined), len(message))]

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        carrier = torch.from_numpy(vector.view(np.int32)).to(self._device)
        dist.all_reduce(carrier)
        return carrier.cpu().numpy().view(np.uint32)


def check_all_reduce_wraps(channel: Channel) -> None:
    """Raise unless the group's integer sum wraps exactly modulo 2^32, which masks need. Run once, at the start."""
    everyones = np.random.default_rng(0).integers(0, 2**32, size=(channel.size, 64), dtype=np.uint32)
    everyones[:, 0] = 2**31 - 1
    if not np.array_equal(channel.all_reduce(everyones[channel.rank].copy()), everyones.sum(axis=0, dtype=np.uint32)):
        raise AggregationError(
            "this machine's int32 all-reduce does not wrap modulo 2^32; use another torch.distributed backend"
        )
