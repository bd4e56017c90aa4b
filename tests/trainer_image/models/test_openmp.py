"""OpenMP starts as many threads as torch counts and the self-test has tried, or the run does not start."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from tensorguard.models import bit_equality, openmp
from tensorguard.models.self_test import SelfTest, SelfTestError

SHOW = (
    "import torch; from tensorguard.models import openmp; torch.set_num_threads(4); "
    "print(openmp.setting_of_fewer_threads())"
)
OpenMP = Callable[[str, int], None]


@pytest.fixture
def set_openmp() -> Iterator[OpenMP]:
    """Changes a setting of this thread, as the environment does at the start of a process, until the test ends."""
    library = ctypes.CDLL(torch._C.__file__)
    before = {name: getattr(library, f"omp_get_{name}")() for name in ("dynamic", "max_active_levels")}

    def change(name: str, value: int) -> None:
        getattr(library, f"omp_set_{name}")(value)

    yield change
    for name, value in before.items():
        change(name, value)


def rows(device: str) -> int:
    return bit_equality.find_bit_equal_shape(lambda _: SelfTest(0.0, 0.0), rows=4, device=torch.device(device))


@pytest.mark.parametrize(
    ("name", "value", "variable"), [("dynamic", 1, "OMP_DYNAMIC"), ("max_active_levels", 0, "OMP_MAX_ACTIVE_LEVELS")]
)
def test_run_on_a_cpu_is_refused_where_openmp_may_start_fewer_threads(
    name: str, value: int, variable: str, set_openmp: OpenMP, one_thread: None
) -> None:
    assert (openmp.setting_of_fewer_threads(), rows("cpu")) == ("", 4)
    set_openmp(name, value)
    with pytest.raises(SelfTestError, match=rf"{variable} is set.*privacy claim would not hold: .*{variable}"):
        rows("cpu")
    assert rows("cuda") == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ""),
        ({"OMP_DYNAMIC": "true"}, "OMP_DYNAMIC"),
        ({"OMP_DYNAMIC": "false", "OMP_THREAD_LIMIT": "4"}, ""),
        ({"OMP_THREAD_LIMIT": "3"}, "OMP_THREAD_LIMIT"),
        ({"OMP_MAX_ACTIVE_LEVELS": "0"}, "OMP_MAX_ACTIVE_LEVELS"),
    ],
)
def test_variable_of_the_environment_is_named(variables: dict[str, str], expected: str) -> None:
    """OpenMP reads them once, when it is loaded."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment = inherited | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    run = subprocess.run([sys.executable, "-c", SHOW], env=environment, stdout=subprocess.PIPE, check=True)
    assert run.stdout.decode().strip() == expected
