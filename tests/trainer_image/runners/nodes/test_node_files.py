"""What a rank finds on its node: the folder and the key that the driver has seen, and a folder for its shard."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path

import pytest

from tensorguard.runners.nodes.node_files import (
    KEY_FILE_VARIABLE,
    SALT_FILE,
    NodeFiles,
    NodeFolderError,
    NodeKeyError,
    digest_of,
    remove_scratch,
    scratch_folder,
)

KEY = secrets.token_bytes(32)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeFiles:
    """What the driver sends to a node that has the key and the run's folder."""
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / SALT_FILE).write_text("salt")
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    return NodeFiles("{}", 3, str(tmp_path), str(tmp_path), "salt", digest_of(KEY, "salt"))


def test_what_the_driver_sends_holds_no_key(files: NodeFiles) -> None:
    assert NodeFiles.unpack(files.pack()).key() == KEY
    assert KEY not in repr(files.pack()).encode()
    assert KEY.hex() not in repr(files.pack())
    assert files.ledger_location() == (None, 3)


def test_key_that_was_replaced_after_the_check_is_refused(files: NodeFiles) -> None:
    files.key_file.write_bytes(secrets.token_bytes(32))
    with pytest.raises(NodeKeyError, match="does not hold the key of the other nodes"):
        files.key()


@pytest.mark.parametrize("found", [None, "salt of an earlier attempt"])
def test_folder_of_another_attempt_is_refused(files: NodeFiles, found: str | None) -> None:
    """A node that joins during the run may have an old copy of the folder, with a ledger of fewer charges."""
    (files.run / SALT_FILE).unlink()
    if found is not None:
        (files.run / SALT_FILE).write_text(found)
    with pytest.raises(NodeFolderError, match="is not the folder that the run was started with"):
        files.ledger_location()


def test_scratch_folder_is_private_and_removed_and_so_are_those_of_killed_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder("uid-1", 1) as peer:
        killed = tmp_path / "tensafe-uid-1-000-abc"
        killed.mkdir()
        with scratch_folder("uid-1", 0) as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert sorted(tmp_path.iterdir()) == sorted([peer, folder])
        assert list(tmp_path.iterdir()) == [peer]
        (tmp_path / "tensafe-uid-2-000-abc").mkdir()
        remove_scratch("uid-1")
        assert [path.name for path in tmp_path.iterdir()] == ["tensafe-uid-2-000-abc"]
