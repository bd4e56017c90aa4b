"""Verifies that a sum is the sum of what the workers sent.

After the reveal the workers draw a joint challenge r that none of them could predict. Each publishes the opening
⟨r, its masked vector⟩ mod 2^32, with a tag for each peer. The openings must add up to ⟨r, sum⟩. They reveal nothing
new: the masked vectors are uniform given their sum.

This detects faults in transit and in libraries, not malicious workers. An error with an odd coordinate goes undetected
with probability 2^-32. The worst error (only multiples of 2^31) goes undetected with probability 1/2, and therefore
`Strict` draws sixteen challenges.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping

import numpy as np

from tensorguard.aggregation.channel import AggregationError, Channel
from tensorguard.aggregation.keys import PairKey
from tensorguard.aggregation.masks import key_stream
from tensorguard.aggregation.protocol import VerifyLevel
from tensorguard.aggregation.session import TAG_BYTES, number_bytes, tag

CHALLENGES: dict[VerifyLevel, int] = {"Disabled": 0, "Standard": 1, "Strict": 16}
_SEED_BYTES = 32


def verify_sum(
    channel: Channel, pairs: Mapping[int, PairKey], step: int, masked: np.ndarray, total: np.ndarray, level: VerifyLevel
) -> None:
    """Check that `total` is the sum of what the workers sent, and the same on all of them.

    Args:
        channel: the group.
        pairs: the pair keys of this worker.
        step: the step number, to which the tags are bound.
        masked: the vector that this worker sent, uint32 [d].
        total: the sum that this worker received, uint32 [d].
        level: determines the number of challenges.

    Raises:
        AggregationError: if `total` is wrong, if workers received different sums, or if an opening is not authentic.
    """
    count = CHALLENGES[level]
    if not count or channel.size == 1:
        return
    challenge = hashlib.sha256(b"".join(channel.all_gather(os.urandom(_SEED_BYTES)))).digest()
    opening, expected = np.empty(count, dtype=np.uint32), np.empty(count, dtype=np.uint32)
    for index in range(count):
        vector = key_stream(challenge, index, len(total))
        opening[index], expected[index] = np.dot(vector, masked), np.dot(vector, total)

    digest = hashlib.sha256(total.tobytes()).digest()
    body = opening.astype("<u4").tobytes() + digest
    bound = number_bytes(step) + challenge
    tags = [
        bytes(TAG_BYTES) if peer == channel.rank else tag(pairs[peer].tag, bound, number_bytes(channel.rank), body)
        for peer in range(channel.size)
    ]
    sum_of_openings = np.zeros(count, dtype=np.uint32)
    for peer, message in enumerate(channel.all_gather(body + b"".join(tags))):
        theirs = message[: len(body)]
        if peer != channel.rank:
            start = len(body) + TAG_BYTES * channel.rank
            if not hmac.compare_digest(
                message[start : start + TAG_BYTES], tag(pairs[peer].tag, bound, number_bytes(peer), theirs)
            ):
                raise AggregationError(f"the opening of worker {peer} in step {step} is not authentic")
            if theirs[-len(digest) :] != digest:
                raise AggregationError(f"workers {peer} and {channel.rank} received different sums in step {step}")
        sum_of_openings += np.frombuffer(theirs[: 4 * count], dtype="<u4")
    if not np.array_equal(sum_of_openings, expected):
        raise AggregationError(f"the sum of step {step} is not the sum of what the workers sent")
