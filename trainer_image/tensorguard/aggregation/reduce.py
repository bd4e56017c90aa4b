"""The arithmetic of one masked sum: local sums, noise and masks go in, the noised sum of all workers comes out.

Integers wrap modulo 2^32, so masks cancel exactly. Poisson sampling has no largest batch. A local sum beyond an int32
saturates, coordinate by coordinate, which never increases the distance between neighbouring sums. A total beyond an
int32 wraps. Both cost accuracy, never privacy.
"""

from __future__ import annotations

import numpy as np

from tensorguard.aggregation.channel import Channel

CARRIER_MAX = 2**31 - 1


def saturate(local_sum: np.ndarray) -> np.ndarray:
    """An int64 [d] sum of clipped units, clipped to ±(2^31−1): int32 [d]."""
    saturated = np.empty(local_sum.shape, dtype=np.int32)
    np.clip(local_sum, -CARRIER_MAX, CARRIER_MAX, out=saturated)  # clipped as int64, then cast
    return saturated


def add_noise_and_mask(local_sum: np.ndarray, noise: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The vector that a worker sends: (sum + noise + mask) mod 2^32, uint32 [d]. `noise` is this worker's share, int64
    [d].
    """
    masked: np.ndarray = noise.astype(np.uint32)  # modulo 2^32, as all that follows
    masked += saturate(local_sum).view(np.uint32)
    masked += mask
    return masked


def reveal(channel: Channel, masked: np.ndarray) -> np.ndarray:
    """The sum of all workers' vectors modulo 2^32, uint32 [d]. This is the only reveal of a step. `masked` does
    not change.
    """
    return channel.all_reduce(masked)


def to_signed(total: np.ndarray) -> np.ndarray:
    """A total modulo 2^32, uint32 [d], as signed integers in −2^31..2^31−1, int32 [d]."""
    return total.view(np.int32)
