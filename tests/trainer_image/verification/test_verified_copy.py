"""`tensafe verify --output-dir`: what is loaded is what was verified, and nothing else is ever written."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tensorguard.cli.main import main
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.signing.keys import PUBLIC_KEY, read_public_key
from tensorguard.signing.signer import TrustedKey
from tensorguard.verification.checkpoint import verify_checkpoint
from tensorguard.verification.ledgers import LedgerHistory, read_file_ledger
from tensorguard.verification.verified_copy import write_copy


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def verify(published: Any, *options: str) -> int:
    return main(["verify", str(published.final), "--public-key", str(published.key), *options])


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the kernel refuse larger files, as a full disk does."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_copy_has_every_file_and_is_verified_itself(
    published: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "new" / "adapter"
    assert verify(published, "--output-dir", str(copy), "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["copy"] == str(copy)
    assert content_of(copy) == content_of(published.final)
    assert [path.name for path in copy.parent.iterdir()] == ["adapter"]
    assert main(["verify", str(copy), "--public-key", str(published.key)]) == 0


def test_copy_is_readable_by_other_users(published: Any, tmp_path: Path) -> None:
    """The server of a pod may have another user id than the init container."""
    mask = os.umask(0o022)
    try:
        assert verify(published, "--output-dir", str(tmp_path / "copy")) == 0
    finally:
        os.umask(mask)
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "copy").iterdir()} == {0o644}


def test_unsigned_checkpoint_is_copied_without_signatures(unsigned: Any, tmp_path: Path) -> None:
    assert main(["verify", str(unsigned.final), "--output-dir", str(tmp_path / "copy")]) == 0
    assert content_of(tmp_path / "copy") == content_of(unsigned.final)


def test_place_that_changes_after_it_was_read_does_not_change_the_copy(published: Any, tmp_path: Path) -> None:
    """The ledger is the last thing that is read, so its reader stands for an attacker with perfect timing."""
    before = content_of(published.final)

    def replace_all_files(uid: str) -> LedgerHistory:
        for path in published.final.iterdir():
            path.write_bytes(b"something else")
        return read_file_ledger(published.run)

    report = verify_checkpoint(str(published.final), TrustedKey(read_public_key(published.key)), replace_all_files)
    write_copy(tmp_path / "copy", report.files)
    assert content_of(tmp_path / "copy") == before


def test_nothing_is_written_where_a_check_fails(
    published: Any, tmp_path: Path, make_other_key: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    copy, other = tmp_path / "copies" / "adapter", make_other_key().with_name(PUBLIC_KEY)
    assert main(["verify", str(published.final), "--public-key", str(other), "--output-dir", str(copy)]) == 1
    shutil.copytree(published.run, tmp_path / "cut")
    ledger = tmp_path / "cut" / LEDGER
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-3]))
    assert verify(published, "--ledger", str(tmp_path / "cut"), "--output-dir", str(copy)) == 1
    for path in published.final.iterdir():
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert verify(published, "--output-dir", str(copy)) == 1
        path.write_bytes(content)
    assert not copy.parent.exists()
    assert "copy" not in capsys.readouterr().out


def test_another_checkpoint_of_the_same_signer_is_refused_by_its_digest(
    published: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = []
    for place in (published.older, published.final):
        assert main(["verify", str(place), "--public-key", str(published.key), "-o", "json"]) == 0
        digests.append(json.loads(capsys.readouterr().out)["digest"])
    assert verify(published, "--digest", digests[0], "--output-dir", str(tmp_path / "copy")) == 1
    assert "this is not the checkpoint that --digest names" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()
    assert verify(published, "--digest", digests[1], "--output-dir", str(tmp_path / "copy")) == 0
    assert "its digest is that of --digest" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("digest", ["", "sha256:12", "0" * 64, "sha256:" + "A" * 64])
def test_digest_in_another_form_is_an_error(published: Any, digest: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        verify(published, "--digest", digest)
    assert ended.value.code == 2 and "is not a digest" in capsys.readouterr().err


def test_second_call_leaves_the_same_copy_as_it_is(published: Any, tmp_path: Path) -> None:
    """Kubernetes may run an init container again, with the volume of its first run."""
    copy = tmp_path / "copy"
    (copy).mkdir()  # an empty folder is no content
    assert verify(published, "--output-dir", str(copy)) == 0
    before = {path: path.stat().st_ino for path in (copy, *copy.iterdir())}
    assert verify(published, "--output-dir", str(copy)) == 0
    assert {path: path.stat().st_ino for path in (copy, *copy.iterdir())} == before


@pytest.mark.parametrize("change", ["changed file", "added file", "missing file", "file linked elsewhere"])
def test_folder_with_other_content_is_not_overwritten(
    published: Any, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copies" / "adapter"
    assert verify(published, "--output-dir", str(copy)) == 0
    weights = copy / "adapter_model.safetensors"
    match change:
        case "changed file":
            weights.write_bytes(b"other")
        case "added file":
            (copy / "adapter_model.bin").write_bytes(b"other")
        case "missing file":
            weights.unlink()
        case "file linked elsewhere":
            weights.rename(tmp_path / "elsewhere")
            weights.symlink_to(tmp_path / "elsewhere")
    before = content_of(copy)
    capsys.readouterr()
    assert verify(published, "--output-dir", str(copy)) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "it exists, and has other content" in printed.err
    assert content_of(copy) == before and [path.name for path in copy.parent.iterdir()] == ["adapter"]


def test_copy_in_the_checkpoint_itself_is_refused(
    published: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, link = content_of(published.final), tmp_path / "link"
    link.symlink_to(published.final)
    for copy in (published.final / "copy", published.final / "a" / "b", link / "copy"):
        assert verify(published, "--output-dir", str(copy)) == 2
        assert "is in the checkpoint: choose a folder outside" in capsys.readouterr().err
    assert content_of(published.final) == before


@pytest.mark.parametrize("kind", ["file", "link to a folder", "link to nothing"])
def test_what_is_no_folder_is_not_overwritten(published: Any, tmp_path: Path, kind: str) -> None:
    copy, elsewhere = tmp_path / "copy", tmp_path / "elsewhere"
    if kind == "file":
        copy.write_text("mine")
    else:
        copy.symlink_to(elsewhere)
    if kind == "link to a folder":
        elsewhere.mkdir()
    assert verify(published, "--output-dir", str(copy)) == 2
    assert copy.is_symlink() or copy.read_text() == "mine"
    assert not elsewhere.exists() or not list(elsewhere.iterdir())


def test_nothing_is_left_where_the_disk_is_full(
    published: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copies" / "adapter"
    largest = max(path.stat().st_size for path in published.final.iterdir())
    with files_of_at_most(largest - 1):
        assert verify(published, "--output-dir", str(copy)) == 2
    assert f"{copy} is not written: File too large" in capsys.readouterr().err
    assert list(copy.parent.iterdir()) == []


@pytest.mark.slow
def test_verification_needs_neither_torch_nor_ray(published: Any) -> None:
    """So that `pip install '.[verify]'` is small."""
    code = (
        "import sys; from tensorguard.cli.main import main; code = main(sys.argv[1:]); "
        "print(sorted({'torch', 'ray', 'transformers', 'peft', 'opacus', 'pyarrow'} & sys.modules.keys())); "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", str(published.final), "--public-key", str(published.key)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
