"""Secure aggregation with pairwise masks (Bonawitz et al. 2017), without dropout recovery.

Each worker adds to its noised sum one mask for each of its neighbours (`neighbours`, `masks`), from keys that only the
two of them share (`keys`). The masks cancel in the sum over all workers, so one integer all-reduce reveals the noised
sum and nothing else (`reduce`). Afterwards the workers verify that the result is the sum of what they sent (`verify`).
"""

from __future__ import annotations

import numpy as np

from tensafe_api.statement.contents import AggregationStatement
from tensorguard.aggregation import reduce
from tensorguard.aggregation.keys import agree_pair_keys
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.neighbours import NeighbourGraph
from tensorguard.aggregation.protocol import AggregationConfig, SecureAggregator
from tensorguard.aggregation.session import derive_key
from tensorguard.aggregation.verify import verify_sum


class PairwiseMasks(SecureAggregator):
    """Masks that cancel only in the sum of all workers.

    Formal guarantee: an adversary who holds the pair keys of some workers learns from the vectors of the others only
    their sum, if these are fewer workers than each worker has neighbours. The sum over all workers is exact. Assumed:
    AES-256-CTR keyed by HKDF-SHA256 is indistinguishable from random, and the workers run this code.
    """

    name = "PairwiseMasks"

    def __init__(self, config: AggregationConfig) -> None:
        self.pairs = agree_pair_keys(config.channel, config.session, config.job_key)
        super().__init__(config)
        self.public_keys = self.pairs.public_keys
        session = config.session
        self._graph = NeighbourGraph.of(session.workers)
        secret = derive_key(config.job_key, b"tensafe neighbours" + session.context())
        self.neighbours = self._graph.neighbours(self.channel.rank, self._graph.circle(secret))
        self.verify_level = config.verify
        self._masks: dict[int, np.ndarray] = {}

    def prepare(self, step: int, dimension: int) -> None:
        keys = {peer: self.pairs[peer] for peer in self.neighbours}
        self._masks[step] = pairwise_mask(keys, self.channel.rank, step, dimension)

    def reveal(self, step: int, local_sum: np.ndarray, noise: np.ndarray) -> np.ndarray:
        if step not in self._masks:
            self.prepare(step, len(local_sum))
        masked = reduce.add_noise_and_mask(local_sum, noise, self._masks.pop(step))
        total = reduce.reveal(self.channel, masked)
        verify_sum(self.channel, self.pairs, step, masked, total, self.verify_level)
        return reduce.to_signed(total)

    def statement(self) -> AggregationStatement:
        if self.verify_level == "Disabled":
            network = (
                "The network may read everything that passes, but changes nothing: `aggregation.verify` is "
                "Disabled, so a change on the way is not detected."
            )
            not_covered = "Malicious workers, and faults in transit and in libraries: sums are not verified."
        else:
            network = "The network may read everything that passes; a change on the way is detected."
            not_covered = "Malicious workers: verification finds only faults in transit and in libraries."
        few = "" if self._graph.is_complete else f" with {self._graph.degree} neighbours"
        return AggregationStatement(
            protocol=f"pairwise masks{few}",
            assumed=(network, *self._on_workers()),
            not_covered=(not_covered,),
        )

    def _on_workers(self) -> tuple[str, ...]:
        """What workers that combine what they see learn from the masked vectors. A single worker masks nothing."""
        workers, degree = self._graph.workers, self._graph.degree
        if workers == 1:
            return ()
        learn = "workers that combine what they see learn only the sum of the other workers' vectors."
        if self._graph.is_complete:
            return (f"Each worker shares masks with all others. Any {learn}",)
        return (
            f"Each worker shares masks with {degree} of the {workers - 1} others, in a random graph that is new at "
            f"each start of the workers. Up to {degree - 1} {learn}",
        )
