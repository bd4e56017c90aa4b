"""Masks that cancel only in the sum of all workers.

For each pair of workers one adds and the other subtracts the same key stream, modulo 2^32. Any proper subset of the
workers' vectors is uniform to whoever lacks a pair key of someone outside it; the full sum is exact. A mask depends on
no data, so it is made ahead, on a thread.

A block of AES-256-CTR is named by (step, position) and by the pair's key, which is new in each incarnation: none is
ever used twice. A step that is run again in the same incarnation does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tensorguard.aggregation.keys import PairKey


def key_stream(key: bytes, step: int, length: int) -> np.ndarray:
    """`length` uniform words that both ends of a pair know for `step`, uint32 [length]."""
    out = np.empty(4 * length + 16, dtype=np.uint8)
    cipher = Cipher(algorithms.AES(key), modes.CTR(step.to_bytes(8, "big") + bytes(8)))
    cipher.encryptor().update_into(bytes(4 * length), out)
    return out[: 4 * length].view("<u4").astype(np.uint32, copy=False)


def pairwise_mask(pairs: Mapping[int, PairKey], rank: int, step: int, length: int) -> np.ndarray:
    """This worker's mask for `step`, uint32 [length]: added for pairs in which it is the lower rank, subtracted for the
    others.
    """
    total = np.zeros(length, dtype=np.uint32)
    for peer, key in pairs.items():
        stream = key_stream(key.mask, step, length)
        if rank < peer:
            total += stream
        else:
            total -= stream
    return total
