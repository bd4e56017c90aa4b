"""Aggregation with three processes over the gloo backend of torch.distributed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SIZE, DIMENSION = 3, 10_001


def expected() -> list[int]:
    """The saturated sums and the noise of all workers, modulo 2^32 around zero, in Python integers."""
    total = [0] * DIMENSION
    for rank in range(SIZE):
        generator = np.random.default_rng(rank)
        values = generator.integers(-(2**31), 2**31, size=DIMENSION)
        values[:2] = (2**40, -(2**40))
        noise = generator.integers(-(2**24), 2**24, size=DIMENSION)
        for place, (value, share) in enumerate(zip(values.tolist(), noise.tolist())):
            total[place] += max(-(2**31) + 1, min(2**31 - 1, value)) + share
    return [(value + 2**31) % 2**32 - 2**31 for value in total]


@pytest.mark.slow
def test_three_processes_agree_and_sum_exactly(tmp_path: Path) -> None:
    script = Path(__file__).with_name("gloo_worker.py")
    rendezvous = tmp_path / "rendezvous"
    subprocess.run([sys.executable, str(script), str(rendezvous), str(SIZE)], check=True, timeout=600)
    results = [json.loads(Path(f"{rendezvous}-{rank}").read_text()) for rank in range(SIZE)]
    for result in results:
        assert result["stops"] == [False, False, True]
        assert result["sums"] == [expected()] * 3
        assert result["sent_unchanged"] == [True] * 3, "the all-reduce has overwritten the vector that a worker sent"
