"""The workers of `test_gloo.py`: aggregation from key agreement to verified sums, over torch.distributed.

They are forked from one process, because imports take the longest time. Each worker writes its results to a file.
"""

from __future__ import annotations

import multiprocessing
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from tensorguard.aggregation.channel import ProcessGroupChannel, check_all_reduce_wraps
from tensorguard.aggregation.pairwise_masks import PairwiseMasks
from tensorguard.aggregation.protocol import AggregationConfig
from tensorguard.aggregation.session import Session

DIMENSION, STEPS = 10_001, 3


def local_values(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A worker's sum, with some values beyond an int32, and its noise."""
    generator = np.random.default_rng(rank)
    values = generator.integers(-(2**31), 2**31, size=DIMENSION)
    values[:2] = (2**40, -(2**40))
    return values, generator.integers(-(2**24), 2**24, size=DIMENSION)


class CheckedChannel(ProcessGroupChannel):
    """Records whether the all-reduce has kept its argument."""

    kept = True

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        before = vector.copy()
        total = super().all_reduce(vector)
        self.kept = self.kept and np.array_equal(vector, before)
        return total


def work(rendezvous: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=300)
    )
    channel = CheckedChannel(torch.device("cpu"))
    check_all_reduce_wraps(channel)
    session = Session(job="gloo", attempt=1, incarnation=1, workers=size)
    aggregator = PairwiseMasks(AggregationConfig(channel, session, bytes(32), grid_bits=20, verify="Strict"))
    values, noise = local_values(rank)
    totals = [
        aggregator.sum(step, values, noise, charged_through=STEPS, ledger_head="0" * 64, stop=rank == 1 and step == 2)
        for step in range(STEPS)
    ]
    dist.destroy_process_group()
    sums = np.array([total for total in totals if total is not None])
    stops = [total is None for total in totals]
    np.savez(f"{rendezvous}-{rank}", sums=sums, stops=stops, kept=channel.kept, neighbours=aggregator.neighbours)


def main(rendezvous: str, size: int) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work, args=(rendezvous, rank, size)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
