"""Forms the torch.distributed group of the workers of one incarnation.

Ray's first worker opens a store, Ray sends its address to the others, and all join. Ranks are those of Ray, unless a
job signs its checkpoints: then the pod with the signing key has rank 0 (`SIGNER_VARIABLE`), and the others follow in
Ray's order, so that the ranks of one pod stay consecutive. Ray Train's `TorchTrainer` would do this
from its controller. It would load PyTorch first in the controller and then in the driver, before a worker is even
requested, which takes 3 to 4 s of CPU time in each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from ray.train import get_context
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.torch import get_device
from ray.util import get_node_ip_address
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from tensafe_api.reasons import Reason

SIGNER_VARIABLE = "TENSAFE_SIGNER"
"""Environment variable of the worker pods of a job that signs: 1 in the one with the signing key, 0 in the others. The
operator sets it."""
_FIRST = "first"


class RendezvousError(RuntimeError):
    """The workers could not form a group. `str()` is a sentence. No record was read before."""

    reason: ClassVar[Reason] = Reason.WORKER_LOST


@contextmanager
def process_group(backend: str, seconds: float, ranks_per_worker: int = 1) -> Iterator[None]:
    """Create the default torch.distributed group for the with block. Every worker of Ray Train calls this.

    A worker that fails inside the block does not destroy the group: Ray Train ends its peers.

    Args:
        backend: "gloo" or "nccl".
        seconds: how long ranks wait for each other in each collective, and to join once they have the address. For the
            address they wait as long as Ray reports all of them alive.
        ranks_per_worker: how many ranks each worker of the job has.

    Raises:
        RendezvousError: a worker did not join in time, or the workers cannot reach each other.
    """
    device = get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, size, timeout = get_context().get_world_rank(), get_context().get_world_size(), timedelta(seconds=seconds)
    host, port, store = get_node_ip_address(), 0, None
    try:
        if rank == 0:  # the system assigns a free port: no other process can take it in between
            store = TCPStore(host, port, size, is_master=True, timeout=timeout, wait_for_workers=False)
            port = store.port
        host, port = broadcast_from_rank_zero((host, port))
        store = store or TCPStore(host, port, size, timeout=timeout, wait_for_workers=False)
        rank = own_rank(store, rank, size, os.environ.get(SIGNER_VARIABLE), ranks_per_worker)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, OSError) as error:
        raise RendezvousError(
            f"worker {rank} of {size} could not join the others at {host}:{port} ({error})"
        ) from error
    yield
    barrier()  # a peer may still be in the last collective
    dist.destroy_process_group()


def own_rank(store: Store, rank: int, size: int, signer: str | None, ranks_per_worker: int) -> int:
    """The rank of this worker in the group.

    Args:
        store: shared by all workers.
        rank, size: of this worker, as Ray counts.
        signer: the value of `SIGNER_VARIABLE`; None where the job does not sign, and ranks are those of Ray.
        ranks_per_worker: how many ranks each pod has. Ray numbers the ranks pod by pod.

    Raises:
        RuntimeError: no pod signs, within the store's timeout.
    """
    if signer is None:
        return rank
    if signer == "1":  # each rank of the pod sets the same number
        store.set(_FIRST, str(rank - rank % ranks_per_worker))
    return (rank - int(store.get(_FIRST))) % size
