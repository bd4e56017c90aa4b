"""The check reports too little disk before anything is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from e2e.platform import images, node
from e2e.platform.cluster import Cluster
from e2e.platform.node import UnsupportedMachine
from tests.support.programs.gotools import home


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that passes all other checks and has 20 GiB of free disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(node, "check", lambda: None)
    monkeypatch.setattr(images, "check", lambda: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100 << 30, 80 << 30, 20 << 30))  # type: ignore[attr-defined]


def test_first_cluster_needs_more_free_disk() -> None:
    with pytest.raises(
        UnsupportedMachine, match="has 20 GiB of free disk, and the cluster's builds and images need 28"
    ):
        Cluster().check()


def test_later_cluster_with_existing_images_needs_less() -> None:
    home().mkdir(parents=True)
    (home() / "loaded.json").write_text(json.dumps({images.names_of_ours()[1]: "sha256:1"}))
    Cluster().check()
