"""Copies Python and the files that it needs into an empty folder, which becomes the root of the operator's image.

    python root.py /opt/tensafe /root-of-the-image

There is no shell, no package manager and no other program in the image. What is copied: the interpreter, its standard
library without the parts that a server never uses, every shared library that these and the packages of the environment
load, certificates, and the files that name users, the system and its packages (for scanners of vulnerabilities).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

UNUSED = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages", "test", "tkinter")
"""Parts of the standard library that are left out, with `turtle*` and what builds C extensions (`config-*`)."""

FILES = (
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/openssl.cnf",
    "/usr/lib/os-release",
    "/usr/lib/ssl",
    "/var/lib/dpkg/status.d",
)
"""Those that exist are copied."""

LAYOUT = ("/bin", "/lib", "/lib64", "/sbin")
"""Links to the same names below /usr, or folders."""


def main(environment: Path, root: Path) -> None:
    """Copy everything."""
    for name in LAYOUT:
        if Path(name).is_symlink():
            copy(Path(name), root)
    interpreter = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    copy(interpreter, root)
    for link in (Path(sys.base_prefix) / "bin").glob("python3*"):
        if link.resolve() == interpreter:
            copy(link, root)
    shutil.copytree(library, below(root, library), symlinks=True, ignore=ignored, dirs_exist_ok=True)
    modules = [*below(root, library).glob("**/*.so"), *environment.glob("**/*.so*")]
    for found in sorted(libraries([interpreter, *modules], environment)):
        copy(found, root)
    for name in FILES:
        if Path(name).exists():
            copy(Path(name), root)
    describe_packages(root)
    for name, mode in (("/tmp", 0o1777), ("/proc", 0o555), ("/sys", 0o555), ("/dev", 0o755), ("/run", 0o755)):
        below(root, Path(name)).mkdir(parents=True, exist_ok=True)
        below(root, Path(name)).chmod(mode)


def below(root: Path, path: Path) -> Path:
    """The place of `path` in the new root."""
    return root / path.relative_to("/")


def copy(path: Path, root: Path) -> None:
    """Copy a file or a folder. A link is copied with what it links to."""
    place = below(root, path.parent.resolve() / path.name)
    if place.exists() or place.is_symlink():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        place.symlink_to(path.readlink())
        if path.parent != Path("/"):
            copy(path.resolve(), root)
        else:
            below(root, path.resolve()).mkdir(parents=True, exist_ok=True)
    elif path.is_dir():
        shutil.copytree(path, place, symlinks=True, ignore=shutil.ignore_patterns("private"))
    else:
        shutil.copy2(path, place)


def ignored(folder: str, names: list[str]) -> set[str]:
    """The parts of the standard library that are left out."""
    out = {name for name in names if name.startswith(("config-", "turtle")) or name in UNUSED}
    if Path(folder).name == "__pycache__":
        out |= {name for name in names if re.search(r"\.opt-[12]\.pyc$", name)}
    return out


def libraries(files: list[Path], environment: Path) -> Iterator[Path]:
    """The shared libraries that the files load, apart from those in the environment."""
    for file in files:
        done = subprocess.run(["ldd", str(file)], capture_output=True, text=True)
        for name in re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout):
            if not Path(name).is_relative_to(environment):
                yield Path(name)


def describe_packages(root: Path) -> None:
    """Write the Debian packages whose files were copied, as distroless images do; scanners read them."""
    if shutil.which("dpkg-query") is None:
        return
    copied = {f"/{path.relative_to(root)}" for path in root.rglob("*.so*")} | {str(Path(sys.executable).resolve())}
    copied |= {name.removeprefix("/usr") for name in copied}  # some packages have /lib where the system has /usr/lib
    found = subprocess.run(["dpkg-query", "--search", *sorted(copied)], capture_output=True, text=True).stdout
    names = {name.strip().split(":")[0] for line in found.splitlines() for name in line.split(": ")[0].split(",")}
    for name in sorted(name for name in names if not name.startswith("diversion")):
        shown = subprocess.run(["dpkg-query", "--status", name], capture_output=True, text=True)
        if shown.returncode == 0:
            place = below(root, Path("/var/lib/dpkg/status.d") / name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(shown.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
