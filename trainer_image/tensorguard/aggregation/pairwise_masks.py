"""Secure aggregation with pairwise masks (Bonawitz et al. 2017), without dropout recovery.

Each worker adds to its noised sum one mask for each other worker (`masks`), from keys that only the two of them share
(`keys`). The masks cancel in the sum over all workers, so one integer all-reduce reveals the noised sum and nothing
else (`reduce`). Afterwards the workers verify that the result is the sum of what they sent (`verify`).
"""

from __future__ import annotations

import numpy as np

from tensafe_api.statement import AggregationStatement
from tensorguard.aggregation import reduce
from tensorguard.aggregation.keys import agree_pair_keys
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.protocol import AggregationConfig, SecureAggregator
from tensorguard.aggregation.verify import verify_sum


class PairwiseMasks(SecureAggregator):
    """Masks that cancel only in the sum of all workers.

    Formal guarantee: the vectors of any proper subset of the workers are uniform to an adversary who lacks a pair key
    of a worker outside the subset, and the sum over all workers is exact. Assumed: AES-256-CTR keyed by HKDF-SHA256 is
    indistinguishable from random, and the workers run this code.
    """

    name = "PairwiseMasks"

    def __init__(self, config: AggregationConfig) -> None:
        self.pairs = agree_pair_keys(config.channel, config.session, config.job_key)
        super().__init__(config)
        self.verify_level = config.verify
        self._masks: dict[int, np.ndarray] = {}

    def prepare(self, step: int, dimension: int) -> None:
        self._masks[step] = pairwise_mask(self.pairs, self.channel.rank, step, dimension)

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
        return AggregationStatement(
            protocol="pairwise masks",
            assumed=(
                network,
                "On one machine, masks do not protect against the owner of the machine. They run all the same, so that "
                "the code that is tested is the code that is used.",
            ),
            not_covered=(not_covered,),
        )
