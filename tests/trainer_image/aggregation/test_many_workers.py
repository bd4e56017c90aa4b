"""Numerics of one step with up to 256 workers, in one process: noise shares, masks of neighbours, and the int32 sum."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from scipy import stats

from tensafe_api.accounting import MIN_NOISE
from tensafe_api.privacy_events import Mechanism
from tensafe_api.resolve import _grid_bits
from tensorguard.aggregation.keys import PairKey
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.neighbours import NeighbourGraph
from tensorguard.aggregation.reduce import add_noise_and_mask, to_signed
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.stream import SecretStream

LENGTH, BATCH = 600, 512


def mechanism(workers: int, colluders: int) -> Mechanism:
    return Mechanism(
        sample_rate="0.01",
        noise_multiplier="0.8",
        clip="1.0",
        unit="Example",
        workers=workers,
        colluders=colluders,
        grid_bits=_grid_bits(BATCH, 0.8, workers, colluders),
        expected_batch_size=BATCH,
    )


def pair_key(one: int, other: int) -> PairKey:
    return PairKey(mask=hashlib.sha256(f"{sorted((one, other))}".encode()).digest(), tag=b"")


@pytest.mark.parametrize(("workers", "colluders"), [(64, 21), (256, 0), pytest.param(256, 85, marks=pytest.mark.slow)])
def test_step_of_many_workers_reveals_the_exact_sum_with_the_accounted_noise(workers: int, colluders: int) -> None:
    """Units are all in one shard in the first coordinate, and spread over the workers in the others."""
    plan, graph = mechanism(workers, colluders), NeighbourGraph.of(workers, colluders)
    assert float(plan.noise_multiplier) * plan.grid >= MIN_NOISE
    sampler, stream, circle = DiscreteGaussian(plan.share_sigma), SecretStream(bytes(32)), graph.circle(bytes(32))
    generator = np.random.default_rng(workers)
    largest = math.floor(BATCH + 8 * math.sqrt(BATCH)) * plan.grid
    total = np.zeros(LENGTH, dtype=np.uint32)
    exact, noise, honest = np.zeros((3, LENGTH), dtype=np.int64)
    for rank in range(workers):
        local = generator.integers(-largest // workers, largest // workers, LENGTH)
        local[0] = largest if rank == 3 else 0
        share = sampler.draw(LENGTH, stream.derive(f"{rank}"))
        keys = {peer: pair_key(rank, peer) for peer in graph.neighbours(rank, circle)}
        total += add_noise_and_mask(local, share, pairwise_mask(keys, rank, 5, LENGTH))
        exact, noise = exact + local, noise + share
        honest += share * (rank >= colluders)
    assert np.array_equal(to_signed(total), exact + noise)
    for shares, sigma in ((noise, plan.outsider_noise_multiplier), (honest, float(plan.noise_multiplier))):
        assert 1e-6 < stats.chi2(LENGTH).sf((shares.astype(float) ** 2).sum() / (sigma * plan.grid) ** 2) < 1 - 1e-6
