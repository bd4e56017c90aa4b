"""What `statement --read` opens: a ledger's URI is written by a pod of the job, which may be an attacker's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from tensafe_kubectl.errors import CommandError
from tensafe_kubectl.storage import LIMIT_BYTES, check_uri, read_stored


def job_with(folder: str) -> dict[str, Any]:
    """A job that stores its checkpoints in a folder."""
    return {"spec": {"checkpoint": {"uri": folder}}}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URIs that fsspec was asked for. It opens none."""
    uris: list[str] = []
    monkeypatch.setattr(fsspec, "url_to_fs", lambda uri, **_: uris.append(uri))
    return uris


@pytest.mark.parametrize("job", [None, job_with("s3://models/triage/")], ids=["deleted job", "job"])
@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("reference://a::http://attacker.example/statement.json", "chain of file systems (::)"),
        ("simplecache::s3://models/triage/final/statement.json", "chain of file systems (::)"),
        ("s3://models/triage/final::file:///etc/passwd", "chain of file systems (::)"),
        ("reference://attacker/statement.json", "only s3://, gs:// and the job's own file:// are read"),
        ("smb://attacker.example/share/statement.json", "only s3://, gs:// and the job's own file:// are read"),
        ("https://attacker.example/statement.json", "only s3://, gs:// and the job's own file:// are read"),
        ("abfs://models@attacker/statement.json", "only s3://, gs:// and the job's own file:// are read"),
        ("http://169.254.169.254/statement.json", "only s3://, gs:// and the job's own file:// are read"),
        ("S3://models/triage/final/statement.json", "only s3://, gs:// and the job's own file:// are read"),
        ("data:text/plain,statement.json", "only s3://, gs:// and the job's own file:// are read"),
        ("final/statement.json", "only s3://, gs:// and the job's own file:// are read"),
        ("s3://models/triage/../other/statement.json", "a path with .."),
        ("gs://models.example/triage/%2e%2E/other/statement.json", "a path with .."),
        ("gs://models.example/triage/..%2fother/statement.json", "a path with .."),
        ("file://attacker.example/share/statement.json", "not an absolute path of this machine"),
        ("file:////attacker.example/share/statement.json", "not an absolute path of this machine"),
        ("//attacker.example/share/statement.json", "not an absolute path of this machine"),
        ("pvc://models/triage/final/statement.json", "only pods can read"),
    ],
)
def test_refusal_names_the_uri_and_the_reason(
    uri: str, why: str, job: dict[str, Any] | None, opened: list[str]
) -> None:
    with pytest.raises(CommandError) as refused:
        read_stored(uri, job)
    assert str(refused.value).startswith(uri) and why in str(refused.value)
    assert opened == []


@pytest.mark.parametrize(
    "uri",
    [
        "s3://another/triage/final/statement.json",
        "s3://models/triage-2/final/statement.json",
        "s3://models/triage",
        "gs://models/triage/final/statement.json",
        "file:///models/triage/final/statement.json",
        "/models/triage/final/statement.json",
    ],
)
@pytest.mark.parametrize("folder", ["s3://models/triage", "s3://models/triage/"])
def test_uri_outside_of_the_jobs_checkpoints_is_refused(uri: str, folder: str, opened: list[str]) -> None:
    with pytest.raises(CommandError) as refused:
        read_stored(uri, job_with(folder))
    assert str(refused.value).startswith(uri) and f"outside of the job's spec.checkpoint.uri, {folder}" in str(
        refused.value
    )
    assert opened == []


def test_job_without_a_folder_of_checkpoints_has_nothing_to_read() -> None:
    for folder in ("", "/", "file:///", "s3://"):
        with pytest.raises(CommandError, match=r"outside of the job's spec\.checkpoint\.uri"):
            check_uri("/etc/final/statement.json", job_with(folder))


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_statement_below_the_jobs_folder_or_of_a_deleted_job_may_be_read(scheme: str) -> None:
    uri = f"{scheme}://models/triage/final/statement.json"
    for job in (None, job_with(f"{scheme}://models/triage"), job_with(f"{scheme}://models/triage/")):
        check_uri(uri, job)


@pytest.mark.parametrize("of_ledger", ["file://", ""])
@pytest.mark.parametrize("of_job", ["file://", ""])
def test_path_is_read_only_where_the_manifest_names_its_folder(tmp_path: Path, of_ledger: str, of_job: str) -> None:
    stored = tmp_path / "triage" / "statement.json"
    stored.parent.mkdir()
    stored.write_bytes(b"{}")
    uri = f"{of_ledger}{stored}"
    assert read_stored(uri, job_with(f"{of_job}{stored.parent}")) == b"{}"
    with pytest.raises(CommandError, match="outside of the job's"):
        read_stored(uri, job_with(f"{of_job}{tmp_path}/another"))
    with pytest.raises(CommandError, match="was deleted"):
        read_stored(uri, None)


def test_file_larger_than_any_statement_is_not_read_to_its_end(tmp_path: Path) -> None:
    stored = tmp_path / "statement.json"
    stored.write_bytes(b" " * LIMIT_BYTES)
    assert len(read_stored(str(stored), job_with(str(tmp_path)))) == LIMIT_BYTES
    stored.write_bytes(b" " * (5 << 20))
    with pytest.raises(CommandError) as refused:
        read_stored(str(stored), job_with(str(tmp_path)))
    assert str(refused.value) == f"{stored} is not a statement: it has more than 4 MiB, and is not read"


def test_s3_server_of_the_job_is_named_where_it_is_not_the_one_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with(str(tmp_path))
    job["spec"]["storage"] = {"endpoint": "https://minio.clinic.example"}
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with pytest.raises(CommandError, match=r"set AWS_ENDPOINT_URL if .*, https://minio\.clinic\.example, or copy"):
        read_stored(f"{tmp_path}/missing.json", job)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://minio.clinic.example")
    with pytest.raises(CommandError, match="for the storage, or copy"):
        read_stored(f"{tmp_path}/missing.json", job)
