"""Programs that tests need and nobody ships as a package: built from their Go modules once, and kept outside the tree.

Each folder of `e2e/cluster` is a module that pins its programs by `tool` lines and `go.sum`. Where there is no Go, a
test that asks for one of them is skipped, and says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODULES = Path(__file__).resolve().parents[2] / "e2e" / "cluster"


def program(module: str, package: str, *, name: str = "", linker_flags: str = "") -> Path:
    """The program that `package` of the module builds, from the cache where it is there.

    Args:
        module: a folder of `e2e/cluster`.
        package: the Go package of its `main`.
        name: what the program is called, where the package's last element is not its name.
        linker_flags: settings of variables (`-X path.name=value`), such as the program's version.
    """
    folder = MODULES / module
    name = name or package.rsplit("/", 1)[-1]
    cache = _cache(folder)
    place = cache / name
    if place.exists():
        return place
    if shutil.which("go") is None:
        pytest.skip(f"no Go on this machine, which builds {name} for this test (install Go 1.26 or newer)")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:  # two test processes want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            aside = cache / f".{name}"
            flags = ["-trimpath", "-ldflags", f"-s -w {linker_flags}"]
            subprocess.run(["go", "build", *flags, "-o", str(aside), package], cwd=folder, check=True)
            aside.replace(place)
    return place


def source(module: str, package: str) -> Path:
    """The folder of a Go module's source that `module` requires: its CRDs and charts lie there."""
    if shutil.which("go") is None:
        pytest.skip(f"no Go on this machine, which fetches {package} for this test (install Go 1.26 or newer)")
    command = ["go", "list", "-m", "-f", "{{.Dir}}", package]
    subprocess.run(["go", "mod", "download", package], cwd=MODULES / module, check=True)
    found = subprocess.run(command, cwd=MODULES / module, check=True, capture_output=True, text=True)
    return Path(found.stdout.strip())


def _cache(folder: Path) -> Path:
    pins = hashlib.sha256((folder / "go.mod").read_bytes() + (folder / "go.sum").read_bytes()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "tensafe-e2e" / f"{folder.name}-{pins}"
