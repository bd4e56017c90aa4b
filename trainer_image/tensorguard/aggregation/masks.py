"""Masks that cancel only in the sum of all workers.

In each pair of workers, one adds and the other subtracts the same key stream, modulo 2^32. The vectors of any proper
subset of the workers are uniform to an adversary who lacks a pair key of a worker outside the subset. The full sum is
exact. A mask depends on no data, so it is computed ahead of the step, on a thread.

A block of the AES-256-CTR key stream is identified by (step, position) and by the key of the pair, which is new in each
incarnation. Therefore no block is used twice: no step runs twice in the same incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tensorguard.aggregation.keys import PairKey


def key_stream(key: bytes, step: int, length: int) -> np.ndarray:
    """The key stream of `key` for `step`: `length` pseudorandom words, uint32 [length]."""
    out = np.empty(4 * length + 16, dtype=np.uint8)
    cipher = Cipher(algorithms.AES(key), modes.CTR(step.to_bytes(8, "big") + bytes(8)))
    cipher.encryptor().update_into(bytes(4 * length), out.data)
    return out[: 4 * length].view("<u4").astype(np.uint32, copy=False)


def pairwise_mask(pairs: Mapping[int, PairKey], rank: int, step: int, length: int) -> np.ndarray:
    """This worker's mask for `step`, uint32 [length]. In each pair, the lower rank adds the key stream and the higher
    rank subtracts it.
    """
    total = np.zeros(length, dtype=np.uint32)
    for peer, key in pairs.items():
        stream = key_stream(key.mask, step, length)
        if rank < peer:
            total += stream
        else:
            total -= stream
    return total
