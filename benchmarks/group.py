"""Groups of workers on this machine: one process for each rank, and the channel between them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tensorguard.aggregation.channel import ProcessGroupChannel

CPU = torch.device("cpu")


@contextmanager
def worker_group(rank: int, workers: int, store: Path, device: torch.device = CPU) -> Iterator[ProcessGroupChannel]:
    """Join the group whose rendezvous is the file ``store``, and leave it once all workers are done.

    It uses NCCL where ``device`` is a GPU, and gloo elsewhere. A process that ends without leaving is aborted now and
    then: gloo's threads still run while Python stops.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=workers)
    try:
        yield ProcessGroupChannel(device)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_ranks(workers: int, target: Callable[..., None], *arguments: Any) -> None:
    """Call ``target(rank, *arguments)`` for each rank, each in a new process, and wait for all of them.

    Raises:
        RuntimeError: a rank failed.
    """
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=target, args=(rank, *arguments)) for rank in range(workers)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError("a worker failed: its error is in the output above")
