"""The benchmark on a GPU: without one it stops, it needs no Ray, and its goals are those of the documentation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.measure import Rounds
from benchmarks.gpu.setting import MIB, TINY, Setting, Timed
from benchmarks.gpu.variants import private, trained
from tensorguard.training.budget_gate import Verdict

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
WITHOUT_RAY = """
import sys

class NoRay:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ImportError("Ray is not installed")

sys.meta_path.insert(0, NoRay())
from benchmarks.gpu.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class OneWorker:
    """The channel of a job with one worker."""

    rank, size = 0, 1

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message]

    def all_reduce(self, vector):
        return vector.copy()


def rounds(seconds: list[float], peak: int) -> Rounds:
    return Rounds([Timed((value,), peak) for value in seconds])


def test_without_a_gpu_one_sentence_says_so(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--json", str(tmp_path / "gpu.json")]) == 0
    assert capsys.readouterr().out.startswith("PyTorch finds no GPU on this machine, so nothing was measured")
    assert not (tmp_path / "gpu.json").exists()


def test_goal_is_missed_only_above_its_limit() -> None:
    assert gpu.Goal("step", 1.05, 1.05).met
    assert not gpu.Goal("step", 1.051, 1.05).met
    assert "MISSED" in str(gpu.Goal("step", 1.051, 1.05))


def test_time_is_compared_within_each_round() -> None:
    found = {"plain": rounds([1.0, 2.0, 4.0], 100 * MIB), "private": rounds([1.1, 2.0, 4.2], 120 * MIB)}
    time, memory = gpu._step_goals(found, rows=8, dimension=1 << 20)
    assert time.value == pytest.approx(1.05)  # the ratios are 1.1, 1.0 and 1.05
    assert (memory.value, memory.limit) == (120, pytest.approx((100 + 8 * 4) * 1.1))


def test_private_step_changes_the_factors() -> None:
    torch.set_num_threads(1)
    with private(Setting(TINY, CPU, micro_batch=2, rounds=1, steps=1), OneWorker()) as step:
        before = [parameter.detach().clone() for parameter in step.parameters]
        assert step.run(0) is Verdict.CONTINUE
        assert not all(torch.equal(old, new) for old, new in zip(before, step.parameters))


def test_full_model_has_a_billion_weights_and_forty_million_numbers() -> None:
    """Counted from the sizes: the model itself would take 2 GB."""
    size = gpu.FULL
    head = size.width // size.heads * size.key_value_heads
    linear = [(size.width, size.width)] * 2 + [(size.width, head)] * 2 + [(size.width, size.inner_width)] * 3
    weights = size.layers * sum(wide * narrow for wide, narrow in linear) + 2 * size.words * size.width
    assert weights > 1e9
    factors = size.layers * sum(map(sum, linear))
    assert (size.rank, factors * size.rank) == (16, 12_615_680)
    assert factors * size.high_rank == pytest.approx(40e6, rel=0.01)


def test_count_of_the_factors_is_that_of_a_model() -> None:
    made = trained(Setting(TINY, CPU, micro_batch=1, rounds=1, steps=1), rank=3)
    linear = [(32, 32)] * 2 + [(32, 16)] * 2 + [(32, 64)] * 3
    assert sum(parameter.numel() for _, parameter in made.parameters) == 3 * sum(map(sum, linear))


@pytest.mark.slow
def test_every_part_runs_without_ray_on_a_cpu(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    command = [sys.executable, "-c", WITHOUT_RAY, "--device", "cpu", "--short", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    (steps,) = found["steps"]
    assert steps["variants"].keys() >= {"plain", "private", "stock", "hooks", "ghost"}
    assert steps["failed"].keys() <= {"fastdp"}
    assert all(each["change"] == 0 for each in found["exactness"])
    assert found["ahead"]["dimension"] > 0
    assert "exact modulo 2^32" in done.stdout
    assert "No goal is checked" in done.stdout
