"""Intel's matrix library (MKL) rounds a record's gradient alike wherever it is in memory, or the run does not start."""

import os
import subprocess
import sys

import pytest
import torch

from tensorguard.models import bit_equality, matrix_library
from tensorguard.models.self_test import SelfTest, SelfTestError

MULTIPLY = "torch.ones(64, 64) @ torch.ones(64, 64)"
SET = "print(matrix_library.use_reproducible_products())"
SHOW = "print(os.environ['MKL_CBWR'])"
needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch was built without MKL")


def output_of(*lines: str, **environment: str) -> str:
    """What a process of its own prints: MKL reads its setting once in a process."""
    inherited = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    inherited["PYTHONPATH"] = os.pathsep.join(sys.path)
    code = "\n".join(("import os, torch", "from tensorguard.models import matrix_library", *lines))
    run = subprocess.run([sys.executable, "-c", code], env=inherited | environment, stdout=subprocess.PIPE, check=True)
    return run.stdout.decode()


@pytest.mark.slow
@needs_mkl
def test_setting_before_the_first_product_is_used():
    assert output_of(SET, MULTIPLY, SET, SHOW) == "True\nTrue\nAUTO,STRICT\n"


@pytest.mark.slow
@needs_mkl
def test_setting_after_a_product_comes_too_late():
    assert output_of(MULTIPLY, SET) == "False\n"


@pytest.mark.slow
@needs_mkl
def test_process_that_began_with_the_setting_may_multiply_first():
    assert output_of(MULTIPLY, SET, MKL_CBWR="AUTO,STRICT") == "True\n"


def test_run_on_a_cpu_is_refused_where_the_setting_came_too_late(monkeypatch, one_thread):
    monkeypatch.setattr(matrix_library, "use_reproducible_products", lambda: False)

    def rows(device: str) -> int:
        return bit_equality.find_bit_equal_shape(lambda _: SelfTest(0.0, 0.0), rows=4, device=torch.device(device))

    with pytest.raises(SelfTestError, match=r"multiplied matrices before the job began.*MKL_CBWR=AUTO,STRICT"):
        rows("cpu")
    assert rows("cuda") == 4


def test_worker_sets_it_with_the_other_deterministic_kernels(monkeypatch):
    calls = []
    monkeypatch.setattr(matrix_library, "use_reproducible_products", lambda: calls.append("matrices"))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode: calls.append(f"torch {mode}"))
    bit_equality.use_deterministic_kernels()
    assert calls == ["matrices", "torch True"]
