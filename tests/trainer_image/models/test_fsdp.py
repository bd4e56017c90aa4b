"""FSDP2 shards the layers of a quantised base, and no bit of a record's gradient changes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.slow
def test_gradients_of_sharded_layers_are_bit_equal(tmp_path):
    script, rendezvous = Path(__file__).with_name("fsdp_worker.py"), tmp_path / "rendezvous"
    subprocess.run([sys.executable, str(script), str(rendezvous), "2"], check=True, timeout=600)
    ranks = [torch.load(f"{rendezvous}-{rank}") for rank in range(2)]
    for first, second in zip(*ranks, strict=True):
        for found in (first, second):
            assert found["whole"].any()
            assert all(torch.equal(again, found["whole"]) for again in found["shards"])
            whole, sharded = found["bytes"]
            assert sharded < 0.51 * whole
        assert not torch.equal(first["whole"], second["whole"]), "each worker has its own records"
