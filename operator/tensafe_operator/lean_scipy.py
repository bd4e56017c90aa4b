"""Lets dp-accounting run without the parts of SciPy and NumPy that no ε uses. They took 60 MB of the operator's memory.

dp-accounting imports `scipy.stats` for the normal distribution, and `scipy.signal` for one convolution. Both import
most of SciPy. After `install`, an import of one of MODULES gives a small module instead:

- `scipy.stats.norm(scale=σ)` calls the functions of `scipy.special` that SciPy's own normal distribution calls.
- `scipy.signal.fftconvolve` makes the calls of `scipy.fft` that SciPy's function makes for two lists of floats.
- `numpy.random` has two empty classes, which SciPy names in a type.
- Everything else comes from the real module, which is imported when it is needed. Where it is not installed, as in the
  operator's image, that is an ImportError, and never another figure.

`tests/operator/test_lean_scipy.py` and the build of the image compare every bit of ε with plain dp-accounting, in
another process. The trainer, `tensafe` and a verifier use plain dp-accounting (decision 0052).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import MutableSequence, Sequence
from types import ModuleType
from typing import Any

MODULES = (
    *("numpy.f2py", "numpy.ma", "numpy.random", "numpy.testing"),
    *("scipy.optimize", "scipy.signal", "scipy.stats"),
)


def install() -> None:
    """Replace MODULES in this process, apart from those that were imported already.

    BLAS, which no ε needs either, gets one thread: each one of a node's cores would take memory.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads the replacements."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in MODULES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Replacement(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "scipy.stats":
            vars(module)["norm"] = _Norm(module)
        elif module.__name__ == "scipy.signal":
            vars(module)["fftconvolve"] = _fftconvolve
        elif module.__name__ == "numpy.random":
            vars(module).update(Generator=type("Generator", (), {}), RandomState=type("RandomState", (), {}))


class _Replacement(ModuleType):
    """A module that takes what it lacks from the real one."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - no submodule is found here

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def _real(name: str) -> ModuleType:
    """The real module, which takes the place of its replacement for all later imports."""
    if isinstance(sys.modules.get(name), _Replacement):
        replacement = sys.modules.pop(name)
        finders = [each for each in sys.meta_path if isinstance(each, _Finder)]
        sys.meta_path[:] = [each for each in sys.meta_path if each not in finders]
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = replacement
            raise
        finally:
            sys.meta_path[:0] = finders
    return sys.modules[name]


class _Norm:
    """The normal distribution, as far as privacy losses need it."""

    def __init__(self, stats: ModuleType) -> None:
        self._stats = stats

    def __call__(self, *, scale: float) -> _Gaussian:
        return _Gaussian(scale)

    def __getattr__(self, name: str) -> Any:
        return getattr(_real(self._stats.__name__).norm, name)


class _Gaussian:
    """`scipy.stats.norm(scale=scale)`."""

    def __init__(self, scale: float) -> None:
        from scipy import special

        self._scale, self._special = scale, special

    def cdf(self, x: Any) -> Any:
        return self._special.ndtr(self._standard(x))

    def logcdf(self, x: Any) -> Any:
        return self._special.log_ndtr(self._standard(x))

    def ppf(self, q: float) -> Any:
        return self._special.ndtri(q) * self._scale

    def _standard(self, x: Any) -> Any:
        import numpy as np

        return np.asarray(x, dtype=np.float64) / self._scale


def _fftconvolve(one: Any, other: Any) -> Any:
    """`scipy.signal.fftconvolve` of two vectors of floats."""
    import numpy as np
    from scipy import fft

    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.size == 0 or other.size == 0:
        return np.asarray([])
    if one.size == 1 or other.size == 1:
        return one * other
    size = one.size + other.size - 1
    fast = [fft.next_fast_len(size, True)]
    product = fft.rfftn(one, fast, axes=[0]) * fft.rfftn(other, fast, axes=[0])
    return fft.irfftn(product, fast, axes=[0])[:size].copy()
