"""A Ray that is slow to start, on a machine that is other processes use this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from tensorguard.runners.local.ray_cluster import RayNotStarted, local_ray


@pytest.mark.parametrize(("slow", "starts"), [(0, 1), (2, 3), (3, 3)])
def test_a_slow_start_is_tried_again(slow: int, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folders: list[str] = []

    def init(**settings: Any) -> None:
        folders.append(settings["_temp_dir"])
        if len(folders) <= slow:
            raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    if slow < 3:
        with local_ray(tmp_path, cpus=1, gpus=0):
            assert len(set(folders)) == starts
    else:
        with (
            pytest.raises(RayNotStarted, match="other processes use this machine"),
            local_ray(tmp_path, cpus=1, gpus=0),
        ):
            pass
    assert len(folders) == starts


def test_another_failure_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        raise ValueError("no such address")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ValueError, match="no such address"), local_ray(tmp_path, cpus=1, gpus=0):
        pass
