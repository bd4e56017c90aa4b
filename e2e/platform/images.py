"""Images without a registry: buildah builds them on a Debian base image, and the node imports them as archives.

buildah keeps what it has built, and the node's containerd keeps what it has imported. A second call with the same
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

from e2e.platform.node import PAUSE, ClusterError, Node, UnsupportedMachine
from tests.support.programs import versions
from tests.support.programs.gotools import program

ROOT = Path(__file__).resolve().parents[2]
PREFIX = os.environ.get("TENSAFE_IMAGE_PREFIX", "localhost/")
"""Prefix of all image names: a registry, where nodes pull the images."""
BASE = f"{PREFIX}tensafe-base:{versions.DEBIAN}"
S3 = f"{PREFIX}versitygw:{versions.VERSITYGW}"
KUBERAY = f"{PREFIX}kuberay-operator:{versions.KUBERAY}"
KUEUE = f"{PREFIX}kueue:{versions.KUEUE}"
_COMMANDS = {"buildah": "buildah", "debootstrap": "debootstrap"}
_PACKAGES = "python3,python3-venv,ca-certificates"
_ROOM = 24e9
"""Free bytes that a build of the trainer's image and its import into the node take, when nothing is cached."""
_REPLACED = "-replaced"
"""End of the name that an image in the node has while a new one takes its first name."""
Log = Callable[[str], None]


def missing() -> set[str]:
    """The Debian packages that building images needs and this machine lacks."""
    return {package for command, package in _COMMANDS.items() if not shutil.which(command)}


def check() -> None:
    """Check whether images can be built on this machine.

    Raises:
        UnsupportedMachine: they cannot.
    """
    if lacking := missing():
        raise UnsupportedMachine(
            f"Debian packages are missing ({', '.join(sorted(lacking))}): install them with apt-get install"
        )


def programs() -> tuple[Path, Path]:
    """Build KubeRay's operator and the S3 server."""
    kuberay = program("kuberay", versions.KUBERAY_MODULE)
    return kuberay, program("s3", "github.com/versity/versitygw/cmd/versitygw")


def build(log: Log) -> dict[str, str]:
    """Build missing images, and always the operator's and the trainer's; return the ids of all, by name."""
    kuberay, s3 = programs()
    _make_room(log)
    if not image_id(BASE):
        log("building the base image")
        _build_base()
    if not image_id(PAUSE):
        _build_on_base(PAUSE, None, ["/bin/sleep", "infinity"])
    if not image_id(KUBERAY):
        log("building KubeRay's image")
        _build_on_base(KUBERAY, kuberay, ["/manager"])
    if not image_id(S3):
        log("building the S3 server's image")
        _build_on_base(S3, s3, ["/versitygw"])
    log("building the images of operator and trainer")
    build_ours(PREFIX)
    names = (PAUSE, KUBERAY, S3, *names_of_ours())
    return {name: image_id(name) for name in names}


def settings(prefix: str = PREFIX) -> dict[str, str]:
    """The variables of `make images` for the images that this module builds."""
    return {"BUILDER": "buildah", "PREFIX": prefix, "BASE_IMAGE": BASE}


def build_ours(prefix: str, *targets: str, **more: str) -> None:
    """Build the operator's and the trainer's image as `make images` does, on the base image.

    Args:
        prefix: prefix of the names.
        targets: `operator`, `trainer`; both by default.
        more: further settings of `scripts/images`, such as `FRESH`.
    """
    environment = {**settings(prefix), **more}
    _run("env", *(f"{name}={value}" for name, value in environment.items()), str(ROOT / "scripts" / "images"), *targets)


def build_kueue(log: Log) -> dict[str, str]:
    """Build Kueue's image, which only one scenario needs; return its id by its name."""
    if not image_id(KUEUE):
        log("building Kueue's image")
        _build_on_base(KUEUE, program("kueue", "sigs.k8s.io/kueue/cmd/kueue"), ["/manager"])
    return {KUEUE: image_id(KUEUE)}


def names_of_ours() -> tuple[str, str]:
    """Names of the operator's and the trainer's image."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    version = next(line.split('"')[1] for line in lines if line.startswith("version ="))
    return f"{PREFIX}tensafe-operator:{version}", f"{PREFIX}tensafe-trainer:{version}"


def remove_name(name: str) -> None:
    """Remove one name of an image. The image stays while it has another."""
    _run("buildah", "rmi", name)


def load(node: Node, built: dict[str, str], record: Path, log: Log) -> None:
    """Import into the node those images that it lacks, and remove those that they replace.

    Args:
        built: ids of images, by name.
        record: file with the ids of the images that the node has imported.
    """
    known = json.loads(record.read_text()) if record.exists() else {}
    imported = node.images()
    for name, new_id in built.items():
        if name in imported and known.get(name) == new_id:
            continue
        log(f"importing {name} into the node")
        if name in imported:  # while the new image is unpacked onto layers of the old one, the old one needs a name
            node.tag(name, f"{name}{_REPLACED}")
        # Compression would double the time, and an archive on disk would triple it.
        node.load(["buildah", "push", "--quiet", "--disable-compression", name, f"docker-archive:/dev/stdout:{name}"])
        known[name] = new_id
        record.write_text(json.dumps(known))
    node.untag(*(name for name in node.images() if _is_unused(name, known)))


def _is_unused(name: str, known: dict[str, str]) -> bool:
    """Whether a name in the node keeps only an image that was replaced.

    Kubernetes gives each image its id as a second name.
    """
    return name.endswith(_REPLACED) or (name.startswith("sha256:") and name not in known.values())


def _build_base() -> None:
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


def _build_on_base(name: str, binary: Path | None, entrypoint: list[str]) -> None:
    """Build an image of the base and one program."""
    container = _run("buildah", "from", BASE).strip()
    if binary is not None:
        _run("buildah", "copy", "--quiet", container, str(binary), entrypoint[0])
    options = ("--entrypoint", json.dumps(entrypoint), "--cmd", "", "--user", "65532:65532")
    _run("buildah", "config", *options, container)
    _run("buildah", "commit", "--quiet", "--rm", container, name)


def _make_room(log: Log) -> None:
    """Where the disk is nearly full, remove what earlier builds left: containers, and images without a name.

    The layers below an image with a name stay, so the next build can use them.
    """
    if shutil.disk_usage("/var").free >= _ROOM:
        return
    unnamed = _run("buildah", "images", "--quiet", "--filter", "dangling=true").split()
    log(f"the disk is nearly full: removing {len(unnamed)} images of earlier builds")
    _run("buildah", "rm", "--all")
    if unnamed:
        _run("buildah", "rmi", "--force", *unnamed)


def image_id(name: str) -> str:
    """An image's id; empty if it does not exist."""
    command = ["buildah", "images", "--quiet", "--no-trunc", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def image_bytes(name: str) -> int:
    """The size of an image's layers, uncompressed."""
    manifest = json.loads(_run("buildah", "inspect", "--type", "image", "--format", "{{.Manifest}}", name))
    return sum(layer["size"] for layer in manifest["layers"])


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        free = shutil.disk_usage("/var").free / 1e9
        output = (done.stdout + done.stderr).strip()[-4000:]
        raise ClusterError(f"{' '.join(command)}: {output} ({free:.1f} GB are free on the disk of /var)")
    return done.stdout
