"""The workers of `test_gloo.py`: every operation from key agreement to a verified sum, over torch.distributed.

They are forked from one process, because imports take the longest time. Each worker writes its results as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tensorguard.aggregation.channel import ProcessGroupChannel, check_all_reduce_wraps
from tensorguard.aggregation.header import CARRIER_BITS, Header, HeaderAgreement
from tensorguard.aggregation.keys import agree_pair_keys
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.reduce import add_noise_and_mask, reveal, to_signed
from tensorguard.aggregation.session import Session
from tensorguard.aggregation.verify import verify_sum

DIMENSION = 10_001


def local_values(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A worker's sum, with some values beyond an int32, and its noise."""
    generator = np.random.default_rng(rank)
    values = generator.integers(-(2**31), 2**31, size=DIMENSION)
    values[:2] = (2**40, -(2**40))
    return values, generator.integers(-(2**24), 2**24, size=DIMENSION)


def work(rendezvous: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=300)
    )
    channel = ProcessGroupChannel(torch.device("cpu"))
    check_all_reduce_wraps(channel)
    session = Session(job="gloo", attempt=1, incarnation=1, workers=size, colluders=0)
    pairs = agree_pair_keys(channel, session, bytes(32))
    agreement = HeaderAgreement(channel, session, bytes(32))
    stops, sums, sent_unchanged = [], [], []
    for step in range(3):
        header = Header(agreement.session, step, 3, 20, DIMENSION, CARRIER_BITS, "0" * 64)
        stops.append(agreement.agree(header, rank == 1 and step == 2))
        values, noise = local_values(rank)
        masked = add_noise_and_mask(values, noise, pairwise_mask(pairs, rank, step, DIMENSION))
        before = masked.copy()
        total = reveal(channel, masked)
        sent_unchanged.append(bool(np.array_equal(masked, before)))
        verify_sum(channel, pairs, step, masked, total, "Strict")
        sums.append(to_signed(total).tolist())
    dist.destroy_process_group()
    results = {"stops": stops, "sums": sums, "sent_unchanged": sent_unchanged}
    Path(f"{rendezvous}-{rank}").write_text(json.dumps(results))


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
