"""Where the disk is nearly full, images of earlier builds go, and those that the next build can use stay."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.platform import images

pytestmark = pytest.mark.skipif(
    not shutil.which("buildah") or os.geteuid() != 0, reason="needs root and the Debian package buildah"
)


def buildah(*arguments: str) -> str:
    return subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def image(file: Path, base: str, *name: str) -> str:
    """The id of a new image: `base` and one file."""
    container = buildah("from", base)
    buildah("copy", container, str(file), "/")
    return buildah("commit", "--quiet", "--rm", container, *name).removeprefix("sha256:")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of images for this test alone."""
    configuration = tmp_path / "storage.conf"
    configuration.write_text(f'[storage]\ndriver = "vfs"\nrunroot = "{tmp_path}/run"\ngraphroot = "{tmp_path}/graph"\n')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(configuration))


def image_ids() -> set[str]:
    """All images, with those that others are built on."""
    return {line.removeprefix("sha256:") for line in buildah("images", "--all", "--quiet", "--no-trunc").split()}


def test_images_without_a_name_are_removed_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("packages", "project", "old"):
        (tmp_path / name).write_text(name)
    packages = image(tmp_path / "packages", "scratch")
    old = image(tmp_path / "old", packages)
    project = image(tmp_path / "project", packages, "localhost/now")
    buildah("from", "localhost/now")

    monkeypatch.setattr(images, "_ROOM", 0)
    images._make_room(pytest.fail)  # the disk is not full
    assert image_ids() == {packages, old, project}

    monkeypatch.setattr(images, "_ROOM", shutil.disk_usage("/var").total * 2)
    said: list[str] = []
    images._make_room(said.append)

    assert image_ids() == {packages, project}
    assert buildah("containers", "--quiet") == ""
    assert said == ["the disk is nearly full: removing 1 images of earlier builds"]
