"""A Ray cluster for one run: where it is, what its processes import, and which sessions are removed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._raylet import AuthenticationTokenLoader
from ray.exceptions import WorkerCrashedError

from tensafe_api.reasons import Reason
from tensorguard.runners.local import ray_cluster as module
from tensorguard.runners.local.ray_cluster import RayNotStarted, _remove_session, local_ray
from tensorguard.training.collective_errors import describe_error


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "starts"), [(0, 1), (2, 3), (3, 3)])
def test_slow_start_of_ray_is_retried(slow: int, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.slow
def test_other_failure_of_ray_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        raise ValueError("no such address")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ValueError, match="no such address"), local_ray(tmp_path, cpus=1, gpus=0):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("fits", [True, False])
def test_session_is_in_a_short_folder_where_tmpdir_is_too_long_for_sockets(
    fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, short = (tmp_path / "a folder that a batch system has made for a job" if not fits else tmp_path), tmp_path
    given.mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(given))
    monkeypatch.setattr(module, "_SHORT_FOLDER", str(short))
    monkeypatch.setattr(module, "_SOCKET_BYTES", len(f"{short}/{module._LONGEST_SOCKET}"))
    sessions: list[Path] = []
    monkeypatch.setattr(ray, "init", lambda **settings: sessions.append(Path(settings["_temp_dir"]).parent))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with local_ray(tmp_path, cpus=1, gpus=0):
        assert [session.parent for session in sessions] == [short]
        assert sessions[0].stat().st_mode & 0o077 == 0
        note = (tmp_path / ".ray-session").read_text()
    sessions[0].mkdir()  # as a killed run leaves it
    _remove_session(note)
    assert not sessions[0].exists()
    monkeypatch.setattr(module, "_SOCKET_BYTES", 90)
    with pytest.raises(RayNotStarted, match=r"TMPDIR: .* at most 90 bytes.* is not writable: set TMPDIR to a folder"):
        local_ray(tmp_path, cpus=1, gpus=0).__enter__()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "free", "reason"),
    [
        (WorkerCrashedError(), 0, Reason.DISK_FULL),
        (WorkerCrashedError(), 2**30, Reason.WORKER_LOST),
        (RayNotStarted("too slow"), 0, Reason.RESOURCES_MISSING),
    ],
)
def test_crash_of_ray_without_space_for_its_session_is_a_full_disk(
    error: Exception, free: int, reason: Reason, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_SHORT_FOLDER", str(tmp_path))
    monkeypatch.setattr(module, "_SOCKET_BYTES", 4096)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))
    monkeypatch.setattr(ray, "init", lambda **settings: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(Exception) as caught, local_ray(tmp_path, cpus=1, gpus=0):
        raise error
    found, sentence = describe_error(caught.value)
    assert found is reason
    assert (f"in {tmp_path}:" in sentence) == (reason is Reason.DISK_FULL)


def test_only_a_session_of_this_project_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = tmp_path / "precious"
    victim = tmp_path / "tensafe-runs" / "precious"
    for folder in (kept, victim, tmp_path / "tensafe-abc"):
        folder.mkdir(parents=True)
    (tmp_path / "tensafe-link").symlink_to(kept)
    for note in ("precious", str(victim), "../precious", "tensafe-link", "tensafe-gone"):
        _remove_session(note)
    assert kept.is_dir()
    assert victim.is_dir()
    _remove_session("tensafe-abc")
    assert not (tmp_path / "tensafe-abc").exists()


@pytest.mark.ray
def test_processes_of_ray_import_nothing_from_the_folders_of_the_driver(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any file with the name of a library would run there, in a process that holds the job key and the records."""
    script, current = tmp_path / "script's folder", tmp_path / "current [folder]: 100%"
    for folder, name in ((script, "beside_the_script"), (current, "in_the_working_folder")):
        folder.mkdir()
        (folder / f"{name}.py").touch()
    monkeypatch.setattr(sys, "argv", [str(script / "train.py")])
    monkeypatch.syspath_prepend(script)
    monkeypatch.chdir(current)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def find() -> list[str]:
        found = ["beside_the_script", "in_the_working_folder", "tensorguard.training.worker"]
        return [name for name in found if importlib.util.find_spec(name) is not None]

    with local_ray(tmp_path, cpus=1, gpus=0):
        assert ray.get(ray.remote(find).remote()) == ["tensorguard.training.worker"]


@pytest.mark.ray
def test_starts_in_a_process_that_has_used_a_cluster_with_another_token(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    AuthenticationTokenLoader.instance().reset_cache()
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    ray.shutdown()
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    with local_ray(tmp_path, cpus=1, gpus=0):
        assert ray.get(ray.remote(lambda: "done").remote()) == "done"
        assert os.environ["RAY_AUTH_TOKEN"] != "a" * 64
    monkeypatch.undo()
    AuthenticationTokenLoader.instance().reset_cache()  # the token of the test's environment again
