"""What one worker computes for secure aggregation, by the number of workers: at the start, and in each step.

    .venv/bin/python -m benchmarks.masks [--dimension 1000000] [--repeats 5]

The complete graph, in which a worker masks with all others, is the reference. The workers of a group do the same work
at the same time, so one worker is measured, in one thread. The network is not part of it; the table shows the bytes
that a worker receives.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tensorguard.aggregation.keys import PairKey, agree_pair_keys
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.neighbours import NeighbourGraph
from tensorguard.aggregation.session import TAG_BYTES, Session, derive_key, number_bytes, tag

JOB_KEY = bytes(32)
WORKERS = (2, 16, 33, 64, 128, 256)


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


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """The shortest of several runs: other processes of the machine only make a run longer."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times) * 1000


def row(workers: int, dimension: int, repeats: int) -> str:
    """The row of a group in the table."""
    session = Session(job="benchmark", attempt=1, incarnation=1, workers=workers, colluders=0)
    graph, peers = NeighbourGraph.of(workers, 0), PreparedPeers(session)
    everyone = {peer: PairKey(os.urandom(32), os.urandom(32)) for peer in range(1, workers)}

    def start() -> tuple[int, ...]:
        agree_pair_keys(peers, session, JOB_KEY)
        return graph.neighbours(0, graph.circle(JOB_KEY))

    def tags() -> None:
        for pair in everyone.values():
            for _ in ("sent", "checked"):
                tag(pair.tag, bytes(40), bytes(8), bytes(36))

    near = {peer: everyone[peer] for peer in start()}
    few = milliseconds(partial(pairwise_mask, near, 0, 1, dimension), repeats)
    complete = milliseconds(partial(pairwise_mask, everyone, 0, 1, dimension), repeats)
    return (
        f"| {workers} | {graph.degree} | {few:.1f} ms | {complete:.1f} ms | {milliseconds(tags, repeats):.2f} ms "
        f"| {TAG_BYTES * workers**2 / 1000:,.0f} kB | {milliseconds(start, repeats):.1f} ms |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What one worker computes for secure aggregation")
    parser.add_argument("--dimension", type=int, default=1_000_000, help="trainable numbers")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print("| workers | neighbours | masks | masks of the complete graph | tags | tags received | start |")
    print("|---|---|---|---|---|---|---|")
    for workers in WORKERS:
        print(row(workers, options.dimension, options.repeats), flush=True)


if __name__ == "__main__":
    main()
