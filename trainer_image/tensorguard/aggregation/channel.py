"""Communication between the workers of one job: all-gather of messages with a fixed length, and integer all-reduce.

All data goes through torch.distributed (gloo on CPUs, NCCL on GPUs) as tensors of bytes or of int32, so nothing that
a peer sends is ever unpickled. The object collectives of torch.distributed pickle, and are not used.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist

from tensafe_api.reasons import Reason


class AggregationError(RuntimeError):
    """The workers could not agree, or a sum is not the sum of its parts. Nothing was revealed, or the revealed sum is
    discarded. The step stays charged.
    """

    reason: ClassVar[Reason] = Reason.AGGREGATION_FAILED


class Channel(Protocol):
    """The communication of one worker with the others of its group."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, message: bytes) -> list[bytes]:
        """The messages of all workers, by rank. All messages must have the same length."""
        ...

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        """The sum over all workers of their uint32 [d] vectors, modulo 2^32. A new array: `vector` does not change."""
        ...


class ProcessGroupChannel:
    """A channel over the default process group of torch.distributed, which must be initialised."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def all_gather(self, message: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(self._device)
        gathered = torch.empty(self.size * len(message), dtype=torch.uint8, device=self._device)
        dist.all_gather_into_tensor(gathered, mine)
        joined = gathered.cpu().numpy().tobytes()
        return [joined[start : start + len(message)] for start in range(0, len(joined), len(message))]

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        # torch.distributed writes the sum into its argument, but a protocol still needs its vector to verify the sum.
        # So torch receives a copy. On a GPU, the transfer is this copy.
        carrier = torch.from_numpy(vector.view(np.int32)).to(self._device, copy=True)
        dist.all_reduce(carrier)
        return to_host(carrier).numpy().view(np.uint32)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` in the host's memory: itself if it is there, or a copy in page-locked memory.

    A GPU writes there many times as fast as to other memory, and PyTorch keeps the memory for the next copy.
    """
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


def check_all_reduce_wraps(channel: Channel) -> None:
    """Check that the group's integer all-reduce wraps exactly modulo 2^32, as masks need. Called once, at the start.

    Raises:
        AggregationError: if the sum is not exact modulo 2^32.
    """
    vectors = np.random.default_rng(0).integers(2**32, size=(channel.size, 64), dtype=np.uint32)
    if not np.array_equal(channel.all_reduce(vectors[channel.rank]), vectors.sum(axis=0, dtype=np.uint32)):
        raise AggregationError(
            "the int32 all-reduce of this machine does not wrap modulo 2^32; use another torch.distributed backend"
        )
