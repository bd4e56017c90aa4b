"""How the workers of one attempt find each other: rank 0 opens a store, Ray tells the others where, and all join.

Ray Train's `TorchTrainer` would do it from its controller, and bring PyTorch into that and into the driver, one after
the other, before a worker is even asked for. `docs/decisions/0016-worker-rendezvous.md` has what that costs.
"""

from __future__ import annotations

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

from tensafe_api.reasons import Reason


class RendezvousError(RuntimeError):
    """The workers could not form a group. `str()` is a sentence; no record was read before."""

    reason: ClassVar[Reason] = Reason.WORKER_LOST


@contextmanager
def process_group(backend: str, seconds: float) -> Iterator[None]:
    """The default torch.distributed group of all workers inside the with block. All of Ray Train's workers call this.

    One that fails in the block leaves nothing: its peers learn of it from Ray Train, which ends them.

    Args:
        backend: "gloo" or "nccl".
        seconds: how long ranks wait for each other in each collective, and to join once all are told where: for that
            they wait as long as Ray says that all are alive.

    Raises:
        RendezvousError: where not all came in time, or cannot reach each other.
    """
    device = get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, size, timeout = get_context().get_world_rank(), get_context().get_world_size(), timedelta(seconds=seconds)
    host, port, store = get_node_ip_address(), 0, None
    try:
        if rank == 0:  # it is given a free port, so that nobody else can have taken it meanwhile
            store = dist.TCPStore(host, port, size, is_master=True, timeout=timeout, wait_for_workers=False)
            port = store.port
        host, port = broadcast_from_rank_zero((host, port))
        store = store or dist.TCPStore(host, port, size, timeout=timeout, wait_for_workers=False)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, OSError) as error:
        raise RendezvousError(
            f"worker {rank} of {size} could not join the others at {host}:{port} ({error})"
        ) from error
    yield
    barrier()  # a peer may still be in the last collective
    dist.destroy_process_group()
