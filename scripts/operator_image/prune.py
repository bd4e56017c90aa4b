"""Deletes from an environment what the operator never imports, during the build of its image.

    python prune.py /opt/tensafe

With `tensafe_operator.lean_scipy`, dp-accounting imports few parts of SciPy and NumPy. The build then compares every ε
of `epsilon_grid.py` with that of the whole packages, so a part that is missing or that changes a figure fails the
build. An upgrade of SciPy that needs another part is fixed here.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNUSED = (
    *(f"scipy/{name}" for name in ("cluster", "constants", "datasets", "differentiate", "fftpack", "integrate")),
    *(f"scipy/{name}" for name in ("interpolate", "io", "linalg", "misc", "ndimage", "odr", "optimize", "signal")),
    *(f"scipy/{name}" for name in ("sparse", "spatial", "stats")),
    *(f"numpy/{name}" for name in ("_pyinstaller", "distutils", "f2py", "ma", "random", "testing")),
    *(f"numpy/{name}" for name in ("_core/include", "_core/lib")),
)
"""Folders below site-packages that must exist, so that this list has no line without an effect; see OPTIONAL."""

OPTIONAL = ("numpy/distutils", "scipy/misc", "scipy/odr", "numpy/_pyinstaller")
"""Those of UNUSED that some versions for some Python versions do not have."""

FILES = ("dp_accounting/**/*_test.py", "**/tests", "**/*.pyi", "**/*.pxd", "**/*.pyx", "**/*.h", "**/*.a")
"""Files and folders of tests, and what only compilers and type checkers read."""


PROGRAMS = ("f2py", "numpy-config")
"""Commands of the deleted parts."""


def main(environment: Path) -> None:
    """Delete the folders and files, and the bytecode of the deleted files."""
    for name in PROGRAMS:
        (environment / "bin" / name).unlink(missing_ok=True)
    (packages,) = environment.glob("lib/python3.*/site-packages")
    for name in UNUSED:
        if (packages / name).is_dir():
            shutil.rmtree(packages / name)
        elif name not in OPTIONAL:
            sys.exit(f"prune.py: {name} is not in {packages}: remove it from UNUSED")
    for pattern in FILES:
        for path in sorted(packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for bytecode in packages.glob("**/__pycache__/*.pyc"):
        if not (bytecode.parent.parent / f"{bytecode.name.split('.')[0]}.py").exists():
            bytecode.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
