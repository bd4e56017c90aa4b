"""A machine without the disk for a cluster is told so before anything is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from e2e.platform import images, node
from e2e.platform.cluster import Cluster
from e2e.platform.gotools import home
from e2e.platform.node import UnsupportedMachine


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that could have a cluster, with 20 GiB of free disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(node, "check", lambda: None)
    monkeypatch.setattr(images, "check", lambda: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100 << 30, 80 << 30, 20 << 30))  # type: ignore[attr-defined]


def test_a_first_cluster_needs_more_room_than_this() -> None:
    with pytest.raises(
        UnsupportedMachine, match="has 20 GiB of free disk, and the cluster's builds and images need 28"
    ):
        Cluster().check()


def test_one_whose_images_are_there_does_not() -> None:
    home().mkdir(parents=True)
    (home() / "loaded.json").write_text(json.dumps({images.names_of_ours()[1]: "sha256:1"}))
    Cluster().check()
