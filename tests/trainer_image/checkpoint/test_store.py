"""Checkpoints are complete or absent, on a disk and in an object store, and each changed file is named."""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from s3fs import S3FileSystem

from tensafe_api.statement.contents import digest
from tensorguard.checkpoint.store import MANIFEST, CheckpointCorrupt, CheckpointError, CheckpointStore
from tensorguard.storage import RetryingFileSystem
from tests.support.programs.s3 import BUCKET, S3

FILES = {"adapter.safetensors": bytes(range(256)), "config.json": b"{}", "empty": b""}
NEWER = {"adapter.safetensors": b"newer", "statement.json": b"{}"}


@pytest.fixture(params=["disk", "memory", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An address that does not exist yet: on a local disk, in a file system without rename, in a real object store."""
    if request.param == "disk":
        yield str(tmp_path / "out" / "checkpoints")
        return
    if request.param == "s3":
        request.getfixturevalue("s3_bucket")
        yield f"s3://{BUCKET}/{uuid.uuid4().hex}/checkpoints"
        return
    yield "memory://bucket/checkpoints"
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def raw(uri: str, name: str, file: str, content: bytes | None = None) -> bytes:
    """The bytes of a stored file, after replacing them by `content` if given."""
    fs, root = fsspec.url_to_fs(uri)
    if content is not None:
        fs.pipe_file(f"{root}/{name}/{file}", content)
    return fs.cat_file(f"{root}/{name}/{file}")


def test_written_files_are_read(uri: str) -> None:
    store = CheckpointStore(uri)
    written = store.write("step-1", FILES)
    assert store.read("step-1") == FILES
    assert CheckpointStore(uri).read("step-1", written) == FILES
    assert store.read("step-1", written, only=("config.json",)) == {"config.json": b"{}"}
    assert store.exists("step-1")
    assert written == digest(raw(uri, "step-1", MANIFEST))


@pytest.mark.slow
def test_digest_depends_only_on_names_and_contents(uri: str) -> None:
    store = CheckpointStore(uri)
    first = store.write("a", FILES)
    assert store.write("b", dict(reversed(FILES.items()))) == first
    changes = [
        {**FILES, "config.json": b"[]"},
        {**FILES, "more": b""},
        {"x" + name: data for name, data in FILES.items()},
    ]
    assert len({first, *(store.write("c", files) for files in changes)}) == 4


def test_manifest_lists_every_file(uri: str) -> None:
    CheckpointStore(uri).write("a", FILES)
    listing = json.loads(raw(uri, "a", MANIFEST))["files"]
    assert listing == {name: {"sha256": digest(data), "size": len(data)} for name, data in FILES.items()}


def test_names_are_those_of_complete_checkpoints(uri: str) -> None:
    store = CheckpointStore(uri)
    assert store.names() == []
    for name in ("step-2", "step-1", "final"):
        store.write(name, FILES)
    raw(uri, "half", "adapter.safetensors", b"half") if "://" in uri else (Path(uri) / "half").mkdir()
    assert store.names() == ["final", "step-1", "step-2"]
    assert not store.exists("half")


def test_remove_deletes_only_the_named_checkpoint(uri: str) -> None:
    store = CheckpointStore(uri)
    store.write("a", FILES)
    kept = store.write("b", NEWER)
    store.remove("a")
    store.remove("a")
    store.remove("never")
    assert store.names() == ["b"]
    assert store.read("b", kept) == NEWER
    with pytest.raises(CheckpointCorrupt, match=r"lacks manifest\.json"):
        store.read("a")


def test_checkpoint_is_replaced_completely(uri: str) -> None:
    store = CheckpointStore(uri)
    store.write("final", FILES)
    assert store.read("final", store.write("final", NEWER)) == NEWER
    fs, root = fsspec.url_to_fs(uri)
    assert sorted(Path(name).name for name in fs.ls(f"{root}/final", detail=False)) == sorted([*NEWER, MANIFEST])


@pytest.mark.parametrize("file", FILES)
def test_changed_file_is_named(file: str, uri: str) -> None:
    store = CheckpointStore(uri)
    written = store.write("a", FILES)
    raw(uri, "a", file, FILES[file] + b"x")
    for expected in (None, written):
        with pytest.raises(CheckpointCorrupt, match=f"is corrupt: {file} is not what was written; move it away"):
            store.read("a", expected)
    assert store.read("a", only=[name for name in FILES if name != file][:1])


def test_pointer_in_place_of_a_file_is_named(uri: str) -> None:
    store = CheckpointStore(uri)
    store.write("a", FILES)
    file = next(iter(FILES))
    raw(uri, "a", file, b"version https://git-lfs.github.com/spec/v1\noid sha256:77\nsize 9\n")
    with pytest.raises(CheckpointCorrupt, match=f"a is incomplete: {file} is a Git LFS pointer; run `git lfs pull` in"):
        store.read("a")


@pytest.mark.parametrize("file", [*FILES, MANIFEST])
def test_missing_file_is_named(file: str, uri: str) -> None:
    store = CheckpointStore(uri)
    store.write("a", FILES)
    fs, root = fsspec.url_to_fs(uri)
    fs.rm_file(f"{root}/a/{file}")
    with pytest.raises(CheckpointCorrupt, match=f"lacks {file}; move it away"):
        store.read("a")


def test_file_that_the_manifest_does_not_list_is_ignored(uri: str) -> None:
    store = CheckpointStore(uri)
    store.write("a", FILES)
    raw(uri, "a", "later", b"added by a user")
    assert store.read("a") == FILES
    with pytest.raises(CheckpointCorrupt, match="lacks later"):
        store.read("a", only=("later",))


def test_checkpoint_other_than_the_recorded_one_is_refused(uri: str) -> None:
    """The files match the manifest, but they are not those of the published checkpoint."""
    store = CheckpointStore(uri)
    recorded = store.write("a", FILES)
    store.write("a", NEWER)
    with pytest.raises(CheckpointCorrupt, match="is not the checkpoint that the ledger recorded"):
        store.read("a", recorded)


@pytest.mark.parametrize(
    "manifest",
    [b"", b"{", b"[]", b"7", b"\xff", b"{}", b'{"files":[]}', b'{"files":{"empty":{}}}', b'{"files":{"a":1}}'],
)
def test_invalid_manifest_is_refused(manifest: bytes, uri: str) -> None:
    store = CheckpointStore(uri)
    store.write("a", FILES)
    raw(uri, "a", MANIFEST, manifest)
    with pytest.raises(CheckpointCorrupt, match=r"has an unreadable manifest\.json"):
        store.read("a")


class Killed(BaseException):
    """Stands for kill -9: no exception handler catches it."""


def killed_at_every_write(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    names: list[str],
    write: Callable[[], object],
    check: Callable[[], None],
) -> int:
    """Run `write` repeatedly, kill it before its first, second, ... call of `names`, and call `check` after each kill.

    Returns the number of kills until `write` completed.
    """
    for last in itertools.count():
        calls = 0

        def count(real: Callable[..., Any], last: int = last) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > last:
                    raise Killed
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(owner, name, count(getattr(owner, name)))
            try:
                write()
            except Killed:
                pass
            else:
                return last
        check()
    raise AssertionError


@pytest.mark.parametrize("calls", ["fsync", "path"])
def test_writer_killed_at_any_point_keeps_old_checkpoints_and_leaves_no_incomplete_one(
    calls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(str(tmp_path))
    first = store.write("step-1", FILES)

    def check() -> None:
        assert store.names() in (["step-1"], ["step-1", "step-2"])
        assert store.read("step-1", first) == FILES
        if store.exists("step-2"):  # killed after the rename: complete
            assert store.read("step-2") == NEWER
            store.remove("step-2")
        store.remove_unfinished()
        assert {path.name for path in tmp_path.iterdir()} == {"step-1"}

    owner, names = (os, ["fsync"]) if calls == "fsync" else (Path, ["mkdir", "open", "rename"])
    kills = killed_at_every_write(monkeypatch, owner, names, lambda: store.write("step-2", NEWER), check)
    assert kills >= len(NEWER) + 2
    assert store.names() == ["step-1", "step-2"]


def test_object_store_gets_the_manifest_last(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "memory://atomic/checkpoints"
    fs, root = fsspec.url_to_fs(uri)
    store = CheckpointStore(uri)
    store.write("step-1", FILES)

    def check() -> None:
        assert store.names() == ["step-1"]
        assert not store.exists("step-2")

    kills = killed_at_every_write(monkeypatch, type(fs), ["pipe_file"], lambda: store.write("step-2", NEWER), check)
    assert kills == len(NEWER) + 1
    assert store.read("step-2") == NEWER
    # Replacement in place: from the first change until the manifest exists again, there is no checkpoint.
    monkeypatch.setattr(type(fs), "pipe_file", lambda *_, **__: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        store.write("step-2", FILES)
    assert store.names() == ["step-1"]
    fs.rm(root, recursive=True)


@pytest.mark.parametrize("call", ["rm_file", "rm"])
def test_checkpoint_is_never_removed_partly(call: str, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(uri)
    store.write("a", FILES)
    fs, _ = fsspec.url_to_fs(uri)

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(fs, call, kill)
        with pytest.raises(Killed):
            store.remove("a")
    assert store.names() == ([] if call == "rm" else ["a"])
    if store.exists("a"):
        assert store.read("a") == FILES
    store.remove("a")
    assert store.names() == []


def test_check_writable_leaves_the_folder_empty(uri: str) -> None:
    store = CheckpointStore(uri)
    store.check_writable()
    assert store.names() == []
    fs, root = fsspec.url_to_fs(uri)
    assert fs.find(root) == []


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        CheckpointError, match=r"file/inside cannot be written to: Not a directory; choose another place"
    ):
        CheckpointStore(str(tmp_path / "file" / "inside")).check_writable()


def test_uri_can_be_opened_with_fsspec(uri: str) -> None:
    store = CheckpointStore(uri)
    store.write("a", FILES)
    with fsspec.open(f"{store.uri('a')}/config.json", "rb") as file:
        assert file.read() == b"{}"


@pytest.mark.slow
def test_bucket_with_tls_needs_a_trusted_authority(s3_tls_bucket: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(f"s3://{BUCKET}/checkpoints")
    written = store.write("step-1", FILES)
    assert store.read("step-1", written) == FILES
    monkeypatch.delenv("AWS_CA_BUNDLE")
    S3FileSystem.clear_instance_cache()
    untrusting = CheckpointStore(f"s3://{BUCKET}/checkpoints")
    for act in (
        untrusting.check_writable,
        lambda: untrusting.read("step-1"),
        lambda: untrusting.write("step-2", FILES),
    ):
        with pytest.raises(CheckpointError, match=r"certificate is not trusted.*AWS_CA_BUNDLE"):
            act()


@pytest.mark.slow
def test_store_waits_for_a_service_that_is_unavailable(s3_tls_bucket: S3) -> None:
    store = CheckpointStore(f"s3://{BUCKET}/checkpoints")
    first = store.write("step-1", FILES)
    s3_tls_bucket.stop()
    with pytest.raises(CheckpointError, match="does not answer"):
        CheckpointStore(f"s3://{BUCKET}/checkpoints").check_writable()
    with ThreadPoolExecutor(1) as other:
        checking = other.submit(store.check_writable, wait=True)
        writing = other.submit(store.write, "step-2", NEWER)
        with pytest.raises(TimeoutError):
            writing.result(5)
        s3_tls_bucket.start()
        checking.result(60)
        assert store.read("step-2", writing.result(60)) == NEWER
    assert store.read("step-1", first) == FILES
    assert store.names() == ["step-1", "step-2"]


@pytest.mark.slow
def test_large_file_is_uploaded_in_parts(s3_bucket: S3) -> None:
    large = {"adapter_model.safetensors": bytes(range(256)) * (401 << 10)}  # 100 MiB and a little
    store = CheckpointStore(f"s3://{BUCKET}/checkpoints")
    written = store.write("step-1", large)
    assert store.read("step-1", written) == large
    assert store.names() == ["step-1"]
    fs, root = fsspec.url_to_fs(f"s3://{BUCKET}/checkpoints/step-1/adapter_model.safetensors")
    assert "-" in fs.info(root)["ETag"], "it was uploaded in one part"


@pytest.mark.slow
def test_outage_is_not_mistaken_for_an_absent_checkpoint(s3_tls_bucket: S3) -> None:
    """Otherwise a ledger would not be checked against that checkpoint, and training would restart at step 0."""
    CheckpointStore(f"s3://{BUCKET}").write("step-1", FILES)
    s3_tls_bucket.stop()
    for uri in (f"s3://{BUCKET}", f"s3://{BUCKET}/checkpoints"):
        impatient = CheckpointStore(uri)
        impatient._fs = RetryingFileSystem(impatient._fs_without_retry, retry_seconds=0.5)
        for ask in (impatient.names, lambda impatient=impatient: impatient.exists("step-1")):
            with pytest.raises(Exception, match="Could not connect"):
                ask()
