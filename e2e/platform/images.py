"""Images without a registry: built by buildah on a Debian base of our own, and handed to the node as archives.

What was built is kept by buildah, and what was handed over by the node's containerd: a second call with the same
sources takes seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from e2e.platform import versions
from e2e.platform.gotools import program
from e2e.platform.node import PAUSE, ClusterError, Node, UnsupportedMachine

ROOT = Path(__file__).resolve().parents[2]
PREFIX = os.environ.get("TENSAFE_IMAGE_PREFIX", "localhost/")
"""What all names of images begin with: a registry, where the cluster is somebody else's."""
BASE = f"{PREFIX}tensafe-base:{versions.DEBIAN}"
S3 = f"{PREFIX}versitygw:{versions.VERSITYGW}"
KUBERAY = f"{PREFIX}kuberay-operator:{versions.KUBERAY}"
KUEUE = f"{PREFIX}kueue:{versions.KUEUE}"
_COMMANDS = {"buildah": "buildah", "debootstrap": "debootstrap"}
_PACKAGES = "python3,python3-venv,ca-certificates"
Say = Callable[[str], None]


def missing() -> set[str]:
    """The Debian packages that images are built with and this machine lacks."""
    return {package for command, package in _COMMANDS.items() if not shutil.which(command)}


def check() -> None:
    """See whether images can be built here.

    Raises:
        UnsupportedMachine: where they cannot.
    """
    if lacking := missing():
        raise UnsupportedMachine(f"images need Debian's packages {', '.join(sorted(lacking))}: apt-get install them")


def programs() -> tuple[Path, Path]:
    """KubeRay's operator and the S3 server."""
    kuberay = program("kuberay", versions.KUBERAY_MODULE)
    return kuberay, program("s3", "github.com/versity/versitygw/cmd/versitygw")


def build(say: Say) -> dict[str, str]:
    """Build what is not there yet, and everything of ours: the ids of all images, by name."""
    kuberay, s3 = programs()
    if not identity(BASE):
        say("building the base image")
        _base()
    if not identity(PAUSE):
        _on_base(PAUSE, None, ["/bin/sleep", "infinity"])
    if not identity(KUBERAY):
        say("building KubeRay's image")
        _on_base(KUBERAY, kuberay, ["/manager"])
    if not identity(S3):
        say("building the S3 server's image")
        _on_base(S3, s3, ["/versitygw"])
    say("building the images of operator and trainer")
    make(PREFIX)
    names = (PAUSE, KUBERAY, S3, *ours())
    return {name: identity(name) for name in names}


def make(prefix: str, *targets: str, **settings: str) -> None:
    """Build images of ours under names that begin with `prefix`, as `make images` does, on our base."""
    environment = {"PREFIX": prefix, "BUILDER": "buildah", "BASE_IMAGE": BASE, **settings}
    _run("env", *(f"{name}={value}" for name, value in environment.items()), str(ROOT / "scripts" / "images"), *targets)


def build_kueue(say: Say) -> dict[str, str]:
    """Build Kueue's image, which one scenario alone needs: its id by its name."""
    if not identity(KUEUE):
        say("building Kueue's image")
        _on_base(KUEUE, program("kueue", "sigs.k8s.io/kueue/cmd/kueue"), ["/manager"])
    return {KUEUE: identity(KUEUE)}


def ours() -> tuple[str, str]:
    """The names of the operator's and the trainer's image."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    version = next(line.split('"')[1] for line in lines if line.startswith("version ="))
    return f"{PREFIX}tensafe-operator:{version}", f"{PREFIX}tensafe-trainer:{version}"


def forget(name: str) -> None:
    """Take a name from an image; it stays while it has another."""
    _run("buildah", "rmi", name)


def load(node: Node, built: dict[str, str], record: Path, say: Say) -> None:
    """Hand the node what it does not have.

    Args:
        built: ids of images, by name.
        record: file that tells the ids of what the node was given before.
    """
    known = json.loads(record.read_text()) if record.exists() else {}
    there = node.images()
    for name, identity in built.items():
        if name in there and known.get(name) == identity:
            continue
        say(f"handing {name} to the node")
        # Compressed it would take twice the time, and an archive as a file three times.
        node.load(["buildah", "push", "--quiet", "--disable-compression", name, f"docker-archive:/dev/stdout:{name}"])
        known[name] = identity
        record.write_text(json.dumps(known))


def _base() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", versions.DEBIAN, str(root))
        for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / leftover)
            (root / leftover).mkdir()
        container = _run("buildah", "from", "scratch").strip()
        _run("buildah", "copy", "--quiet", container, str(root), "/")
        _run("buildah", "config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", "--cmd", "/bin/bash", container)
        _run("buildah", "commit", "--quiet", "--rm", container, BASE)


def _on_base(name: str, binary: Path | None, entrypoint: list[str]) -> None:
    """An image of the base and one program."""
    container = _run("buildah", "from", BASE).strip()
    if binary is not None:
        _run("buildah", "copy", "--quiet", container, str(binary), entrypoint[0])
    options = ("--entrypoint", json.dumps(entrypoint), "--cmd", "", "--user", "65532:65532")
    _run("buildah", "config", *options, container)
    _run("buildah", "commit", "--quiet", "--rm", container, name)


def identity(name: str) -> str:
    """An image's id; empty where there is none."""
    command = ["buildah", "images", "--quiet", "--no-trunc", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()[-4000:]}")
    return done.stdout
