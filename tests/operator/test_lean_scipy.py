"""The operator imports a part of SciPy, and every bit of every ε is that of plain dp-accounting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import signal, stats

from tensafe_operator.lean_scipy import _fftconvolve, _Gaussian

ROOT = Path(__file__).resolve().parents[2]
GRID = ROOT / "scripts" / "operator_image" / "epsilon_grid.py"
MAX_PACKAGES = 31
"""Of the operator's image. Each one is a source of vulnerabilities and of size."""


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_operator(code: str) -> str:
    """What the code prints in a process that has imported the operator as `python -m tensafe_operator` does."""
    return run("-c", f"import sys, tensafe_operator.__main__ as main\nmain.lean_scipy.install()\n{code}").strip()


@pytest.mark.slow
def test_every_bit_of_every_epsilon_is_that_of_plain_dp_accounting() -> None:
    plain = run(str(GRID), "--part").splitlines()
    assert run(str(GRID), "--part", "--lean").splitlines() == plain
    assert len(plain) > 150
    assert {line.split()[0] for line in plain} == {"RDP", "PLD", "σ", "RdpAccountant", "PLDAccountant"}


@pytest.mark.parametrize("sigma", [1e-3, 0.3, 0.7, 1.0, 2.760803239, 300.0, 2.0**14])
def test_normal_distribution_is_scipys(sigma: float) -> None:
    own, scipys = _Gaussian(sigma), stats.norm(scale=sigma)
    generator = np.random.default_rng(7)
    x = np.concatenate([generator.normal(0, 9 * sigma, 5000), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e308, 5e-324]])
    for lean, plain in ((own.cdf, scipys.cdf), (own.logcdf, scipys.logcdf)):
        with np.errstate(over="ignore"):
            for each in (x, list(x)):
                assert (lean(each) + 0.0).tobytes() == (plain(each) + 0.0).tobytes()  # the sign of a zero aside
        for number in (0.3 * sigma, 2, -np.inf, np.inf):
            assert (lean(number) + 0.0).hex() == (plain(number) + 0.0).hex()
    for each in (0.0, 1.0, 0.5, -1.0, 5e-324, 1e-300, 0.5 * np.exp(-50.0), np.nextafter(1.0, 0.0), 3.0):
        assert own.ppf(each).hex() == scipys.ppf(each).hex()


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (1, 1), (1, 7), (7, 1), (2, 2), (5, 5), (1000, 33), (60_011, 4_097)])
def test_convolution_is_scipys(sizes: tuple[int, int]) -> None:
    generator = np.random.default_rng(sum(sizes))
    one, other = (generator.exponential(size=size) ** 9 for size in sizes)
    for pair in ((one, other), (list(one), list(other)), (np.zeros_like(one), other)):
        assert _fftconvolve(*pair).tobytes() == signal.fftconvolve(*pair).tobytes()


def test_what_is_not_replaced_comes_from_the_real_module() -> None:
    figures = "stats.laplace(scale=2).cdf(1), stats.norm.pdf(0), optimize.brentq.__module__"
    code = f"from scipy import optimize, stats; print({figures})"
    assert in_operator(code) == run("-c", code).strip()


def test_module_that_the_image_lacks_is_an_error_and_not_a_figure() -> None:
    code = """
class Missing:
    def find_spec(self, name, path, target=None):
        if name == "scipy.stats":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(1, Missing())
from scipy import stats
for name in ("laplace", "laplace", "norm"):
    try:
        print(getattr(stats, name).cdf is not None)
    except ModuleNotFoundError as error:
        print(error)
"""
    assert in_operator(code).split() == ["scipy.stats", "scipy.stats", "scipy.stats"]


def test_operator_is_ready_before_it_imports_numpy() -> None:
    assert in_operator("print(*{'numpy', 'scipy', 'dp_accounting', 'torch', 'ray'} & set(sys.modules))") == ""


def test_figures_import_few_parts_of_scipy() -> None:
    code = """
from tensafe_api import accounting, calibration
from tensafe_operator.lean_scipy import MODULES, _Replacement
figures = {"sample_rate": 0.04, "noise_multiplier": 1.1, "steps": 100, "delta": 1e-5}
accounting.epsilon(**figures, accountant="PLD")
calibration.calibrate(target_epsilon=3, sample_rate=0.04, steps=100, delta=1e-5, accountant="PLD")
print(*(name for name in MODULES if not isinstance(sys.modules.get(name, _Replacement("")), _Replacement)))
print(*sorted(name for name in sys.modules if name.startswith("scipy.") and name.count(".") == 1 and name[6] != "_"))
"""
    expected = ("fft", "optimize", "signal", "special", "stats", "version")
    assert in_operator(code).split() == [f"scipy.{name}" for name in expected]


def test_operator_has_few_packages_and_no_large_client() -> None:
    pinned = [line.split("==")[0] for line in (ROOT / "requirements" / "operator.txt").read_text().splitlines()]
    assert "kubernetes" not in pinned and len(pinned) <= MAX_PACKAGES
