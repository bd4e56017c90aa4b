"""The channel over torch.distributed, in a group of one worker. `test_gloo.py` has larger groups, of processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tensorguard.aggregation.channel import ProcessGroupChannel


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[ProcessGroupChannel]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        yield ProcessGroupChannel(torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def test_group_of_one_worker_exchanges_messages_and_sums(channel: ProcessGroupChannel) -> None:
    assert (channel.rank, channel.size) == (0, 1)
    message = bytes(range(256))
    assert channel.all_gather(message) == [message]
    vector = np.array([0, 1, 2**31, 2**32 - 1], dtype=np.uint32)
    total = channel.all_reduce(vector)
    assert total.dtype == np.uint32
    assert total.tolist() == vector.tolist() == [0, 1, 2**31, 2**32 - 1]


def test_sum_is_a_new_array(channel: ProcessGroupChannel) -> None:
    """torch.distributed writes into its argument, and a worker needs the vector that it sent to verify the sum."""
    vector = np.ones(3, dtype=np.uint32)
    assert not np.shares_memory(channel.all_reduce(vector), vector)
