"""Aggregation with processes over the gloo backend of torch.distributed, in a complete and in a sparse graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DIMENSION = 10_001


def expected(size: int) -> np.ndarray:
    """The saturated sums and the noise of all workers, modulo 2^32 around zero, in Python integers."""
    total = [0] * DIMENSION
    for rank in range(size):
        generator = np.random.default_rng(rank)
        values = generator.integers(-(2**31), 2**31, size=DIMENSION)
        values[:2] = (2**40, -(2**40))
        noise = generator.integers(-(2**24), 2**24, size=DIMENSION)
        for place, (value, share) in enumerate(zip(values.tolist(), noise.tolist())):
            total[place] += max(-(2**31) + 1, min(2**31 - 1, value)) + share
    return np.array([(value + 2**31) % 2**32 - 2**31 for value in total])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "neighbours"), [(3, 2), (64, 32)])
def test_processes_agree_and_sum_exactly(size: int, neighbours: int, tmp_path: Path) -> None:
    script, rendezvous = Path(__file__).with_name("gloo_worker.py"), tmp_path / "rendezvous"
    subprocess.run([sys.executable, str(script), str(rendezvous), str(size)], check=True, timeout=600)
    total = expected(size)
    for rank in range(size):
        result = np.load(f"{rendezvous}-{rank}.npz")
        assert result["stops"].tolist() == [False, False, True]
        assert np.array_equal(result["sums"], [total, total])
        assert result["kept"], "the all-reduce has overwritten the vector that a worker sent"
        assert len(result["neighbours"]) == neighbours
