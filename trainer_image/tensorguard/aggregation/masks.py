"""Masks that cancel only in the sum of all workers.

In each pair of neighbours, one adds and the other subtracts the same key stream, modulo 2^32. The graph of neighbours
is connected, so the vectors of any proper subset of the workers are uniform to an adversary who holds no pair key. The
full sum is exact. A mask depends on no data, so it is computed ahead of the step, on a thread.

A block of the AES-256-CTR key stream is identified by (step, position) and by the key of the pair, which is new in each
incarnation. Therefore no block is used twice: no step runs twice in the same incarnation, and sums of figures have
numbers that no step has.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from tensorguard.aggregation.keys import PairKey

_PART = 1 << 15
"""Words of a mask that are computed at a time. All streams of a part stay in the cache of a CPU core."""


def key_stream(key: bytes, step: int, length: int) -> np.ndarray:
    """The key stream of `key` for `step`: `length` pseudorandom words, uint32 [length]."""
    return _next_words(_start_stream(key, step), length)


def pairwise_mask(pairs: Mapping[int, PairKey], rank: int, step: int, length: int) -> np.ndarray:
    """This worker's mask for `step`, uint32 [length]. In each pair, the lower rank adds the key stream and the higher
    rank subtracts it.

    Args:
        pairs: the pair keys of the neighbours. Each of them must have this worker as a neighbour too.
    """
    streams = [(rank < peer, _start_stream(key.mask, step)) for peer, key in pairs.items()]
    total = np.zeros(length, dtype=np.uint32)
    for start in range(0, length, _PART):
        part = total[start : start + _PART]
        for adds, stream in streams:
            if adds:
                part += _next_words(stream, len(part))
            else:
                part -= _next_words(stream, len(part))
    return total


def _start_stream(key: bytes, step: int) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(step.to_bytes(8, "big") + bytes(8))).encryptor()


def _next_words(stream: CipherContext, length: int) -> np.ndarray:
    out = np.empty(4 * length + 16, dtype=np.uint8)
    stream.update_into(bytes(4 * length), out.data)
    return out[: 4 * length].view("<u4").astype(np.uint32, copy=False)
