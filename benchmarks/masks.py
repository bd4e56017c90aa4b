"""What one worker computes for secure aggregation, by the number of workers: at the start, and in each step.

    .venv/bin/python -m benchmarks.masks [--dimension 1000000] [--repeats 5] [--workers 2 16 33 64 128 256]

The complete graph, in which a worker masks with all others, is the reference. The workers of a group do the same work
at the same time, so one worker is measured, in one thread, and the others exist as public keys only. So groups larger
than a job can have are measured too. The network is not part of it; the table shows the bytes that a worker receives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks.command import option_parser
from tensorguard.aggregation import keys
from tensorguard.aggregation.keys import PairKey, agree_pair_keys
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.neighbours import NeighbourGraph
from tensorguard.aggregation.session import TAG_BYTES, Session, derive_key, number_bytes, tag

JOB_KEY = bytes(32)
WORKERS = (2, 16, 33, 64, 128, 256)
HEADER = (
    "| workers | neighbours | masks | masks of the complete graph | tags | tags received | start |\n"
    "|---|---|---|---|---|---|---|"
)


class PreparedPeers:
    """A channel on which rank 0 finds the public keys of all other workers."""

    rank = 0

    def __init__(self, session: Session) -> None:
        self.size = session.workers
        key = derive_key(JOB_KEY, b"tensafe key authentication")
        publics = [
            X25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            for _ in range(self.size)
        ]
        self._messages = [
            public + tag(key, session.context(), number_bytes(rank), public) for rank, public in enumerate(publics)
        ]

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message, *self._messages[1:]]

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True)
class Cost:
    """What one worker of a group computes, in milliseconds of CPU time.

    Attributes:
        neighbours: the workers with which it shares masks.
        masks: its masks of one step.
        complete: its masks of one step if all workers were neighbours.
        tags: the tags that it makes and checks in one verification.
        tags_received: bytes of all tags that it receives in one verification.
        start: once, at the start of a group: agreeing on all pair keys, and finding its neighbours.
    """

    workers: int
    neighbours: int
    masks: float
    complete: float
    tags: float
    tags_received: int
    start: float

    def row(self) -> str:
        """A row of the table under HEADER."""
        return (
            f"| {self.workers} | {self.neighbours} | {self.masks:.1f} ms | {self.complete:.1f} ms | {self.tags:.2f} ms "
            f"| {self.tags_received / 1000:,.0f} kB | {self.start:.1f} ms |"
        )


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """The CPU time of the shortest of several runs. `call` must work in this thread alone.

    Other processes of the machine only make a run longer, even in CPU time, since they share caches and memory.
    """
    times = []
    for _ in range(repeats):
        started = time.thread_time()
        call()
        times.append(time.thread_time() - started)
    return min(times) * 1000


def pair_keys(peers: range) -> dict[int, PairKey]:
    """Random pair keys for these workers."""
    return {peer: PairKey(os.urandom(32), os.urandom(32)) for peer in peers}


def measure(workers: int, dimension: int, repeats: int) -> Cost:
    """The cost for one worker of a group."""
    session = Session(job="benchmark", attempt=1, incarnation=1, workers=workers)
    graph, peers = NeighbourGraph.of(workers), PreparedPeers(session)
    everyone = pair_keys(range(1, workers))

    def start() -> tuple[int, ...]:
        # A job has at most 256 workers. The numerics have no such limit.
        with mock.patch.object(keys, "MAX_WORKERS", workers):
            agree_pair_keys(peers, session, JOB_KEY)
        return graph.neighbours(0, graph.circle(JOB_KEY))

    def tags() -> None:
        for pair in everyone.values():
            for _ in ("sent", "checked"):
                tag(pair.tag, bytes(40), bytes(8), bytes(36))

    near = {peer: everyone[peer] for peer in start()}
    return Cost(
        workers,
        graph.degree,
        masks=milliseconds(partial(pairwise_mask, near, 0, 1, dimension), repeats),
        complete=milliseconds(partial(pairwise_mask, everyone, 0, 1, dimension), repeats),
        tags=milliseconds(tags, repeats),
        tags_received=TAG_BYTES * workers**2,
        start=milliseconds(start, repeats),
    )


def main() -> None:
    parser = option_parser("masks", "What one worker computes for secure aggregation")
    parser.add_argument("--dimension", type=int, default=1_000_000, help="trainable numbers")
    parser.add_argument("--repeats", type=int, default=5, help="how often each size is timed (default 5)")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=WORKERS, help="sizes of the group (default: 2 to 256)"
    )
    options = parser.parse_args()
    print(HEADER)
    for workers in options.workers:
        print(measure(workers, options.dimension, options.repeats).row(), flush=True)


if __name__ == "__main__":
    main()
