"""One masked integer sum: local sums and noise go in, the noised sum of all workers comes out, and nothing else is ever
seen.

Integers wrap modulo 2^32 on the way, so masks cancel exactly. Poisson sampling has no worst case: a local sum beyond an
int32 saturates, coordinate by coordinate (which brings neighbouring sums no further apart), and a total beyond it
wraps: both cost utility, never privacy.
"""

from __future__ import annotations

import numpy as np

from tensorguard.aggregation.channel import Channel

CARRIER_MAX = 2**31 - 1


def saturate(local_sum: np.ndarray) -> np.ndarray:
    """An int64 [d] sum of clipped units, brought into ±(2^31−1)."""
    return np.clip(local_sum, -CARRIER_MAX, CARRIER_MAX)


def add_noise_and_mask(local_sum: np.ndarray, noise: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """What a worker sends: (sum + noise + mask) mod 2^32, uint32 [d]. `noise` is this worker's int64 share."""
    return (saturate(local_sum) + noise).astype(np.uint32) + mask


def reveal(channel: Channel, blinded: np.ndarray) -> np.ndarray:
    """The sum of all workers' vectors modulo 2^32, uint32 [d]: the step's one reveal. `blinded` is left as it is."""
    return channel.all_reduce(blinded.copy())


def to_signed(total: np.ndarray) -> np.ndarray:
    """A uint32 [d] total as signed integers around zero, int32 [d]."""
    return total.view(np.int32)
