"""The private folder of a run: where it is for every spelling of the run's folder, and who can read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorguard.runners.local.private_folder import PrivateFolder
from tensorguard.runners.run_folder import RunFolderError


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runs" / "claims").mkdir(parents=True)
    (tmp_path / "latest").symlink_to(tmp_path / "runs" / "claims")
    monkeypatch.chdir(tmp_path / "runs" / "claims")
    return tmp_path / "runs" / "claims"


@pytest.mark.parametrize("spelling", [".", "./", "../claims", "../claims/", "x/..", "../../latest", "../../latest/"])
def test_every_spelling_of_the_runs_folder_has_the_same_private_folder(run: Path, spelling: str) -> None:
    assert PrivateFolder.of(Path(spelling), "s3://m/claims").path == run.with_name("claims.private")


@pytest.mark.parametrize(
    ("checkpoints", "place"),
    [
        ("s3://bucket/claims", "runs/claims.private"),
        ("{base}/runs/claims/checkpoints", "runs/claims.private"),
        ("{base}/runs/claims", "runs/claims.private"),
        ("{base}/elsewhere", "runs/claims.private"),
        ("{base}/runs/cla", "runs/claims.private"),
        ("{base}/runs", "runs.private"),
        ("file://{base}/runs/", "runs.private"),
        ("{base}/latest/..", "runs.private"),
    ],
)
def test_private_folder_is_outside_the_folder_of_the_checkpoints(run: Path, checkpoints: str, place: str) -> None:
    base = run.parents[1]
    assert PrivateFolder.of(run, checkpoints.format(base=base)).path == base / place


def test_a_run_in_the_root_folder_is_refused() -> None:
    with pytest.raises(RunFolderError, match="choose another --output-dir"):
        PrivateFolder.of(Path("/"), "s3://bucket/claims")


def test_only_the_owner_can_read_it_even_if_it_was_open_before(run: Path) -> None:
    private = PrivateFolder.of(run, "s3://m")
    private.path.mkdir()
    private.path.chmod(0o777)
    private.open()
    private.create_key("a")
    assert private.path.stat().st_mode & 0o777 == 0o700
    assert private.key_file("a").stat().st_mode & 0o777 == 0o600
    assert len(private.key_file("a").read_bytes()) == 32


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_folder_of_another_user_is_refused(run: Path) -> None:
    private = PrivateFolder.of(run, "s3://m")
    private.path.mkdir()
    os.chown(private.path, 12345, -1)
    with pytest.raises(RunFolderError, match="belongs to another user"):
        private.open()
    private.path.rmdir()
    private.path.symlink_to(run)
    os.chown(private.path, 12345, -1, follow_symlinks=False)
    with pytest.raises(RunFolderError, match="belongs to another user"):
        private.open()


def test_place_that_cannot_be_written_is_refused_with_the_fix(run: Path) -> None:
    private = PrivateFolder.of(run, "s3://m")
    private.path.write_text("a file in the way")
    with pytest.raises(RunFolderError, match=r"claims\.private is not writable .*choose an --output-dir in a folder"):
        private.open()


def test_private_folder_is_not_the_folder_of_another_run(run: Path) -> None:
    with pytest.raises(RunFolderError, match="has the name of a private folder, where the key of another run may be"):
        PrivateFolder.of(PrivateFolder.of(run, "s3://m").path, "s3://m")


def test_unreadable_key_is_named(run: Path) -> None:
    private = PrivateFolder.of(run, "s3://m")
    private.open()
    private.key_file("a").mkdir()
    with pytest.raises(RunFolderError, match=r"job-a\.key cannot be read \(Is a directory\); restore it"):
        private.check_key("a")


def test_deleting_a_key_keeps_other_keys_and_tracebacks(run: Path) -> None:
    private = PrivateFolder.of(run, "s3://m")
    private.delete_key("never-created")
    private.open()
    private.create_key("a")
    private.create_key("b")
    (private.path / "errors-rank0.log").write_text("a traceback")
    private.delete_key("a")
    assert not private.key_file("a").exists()
    assert private.key_file("b").exists()
    private.delete_key("b")
    assert (private.path / "errors-rank0.log").exists()
    private.delete_secrets("b")
    assert not private.path.exists()
