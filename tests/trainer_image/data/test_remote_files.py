"""Reading from other file systems than the local one: any of fsspec, and a real object store."""

import json
import uuid

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from s3fs import S3FileSystem

from tensafe_api.resources.training import Storage
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.formats import format_named
from tensorguard.data.formats.base import DataFile
from tensorguard.data.listing import inspect
from tensorguard.data.raw_table import Wanted
from tensorguard.storage import filesystem_options
from tests.support.programs.s3 import BUCKET
from tests.support.trainer.data_files import TEXT_LABEL


class RemoteFileSystem(AbstractFileSystem):
    """Files as those of s3fs and gcsfs, whose `readline` takes no limit."""

    def __init__(self, content):
        super().__init__(skip_instance_cache=True)
        self.content = content

    def info(self, path, **options):
        return {"name": path, "size": len(self.content), "type": "file"}

    def _open(self, path, mode="rb", **options):
        return RemoteFile(self, path, size=len(self.content), block_size=16)


class RemoteFile(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        return self.fs.content[start:end]


@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl"])
@pytest.mark.parametrize("parts", [1, 3])
def test_remote_file_is_read_line_by_line(form, parts):
    rows = [{"text": f"note {number}", "label": str(number)} for number in range(20)]
    separator = {"tsv": "\t", "csv": ","}.get(form)
    lines = [separator.join(row.values()) for row in rows] if separator else [json.dumps(row) for row in rows]
    header = [f"text{separator}label"] if separator else []
    filesystem = RemoteFileSystem("".join(line + "\n" for line in [*header, *lines]).encode())
    known, wanted = format_named(form), ("text", "label")
    file = DataFile(filesystem, f"d.{form}", "w")
    assert set(known.columns(file, wanted).names) == set(wanted)
    parts = parts if known.splittable else 1
    found = [each for part in range(parts) for each in known.rows(file, wanted, part, parts)]
    assert [dict(zip(wanted, row)) for each in found for row in zip(*each.columns.values())] == rows
    places = [known.place(file, at) for each in found for at in each.at]
    assert places == [f"line {number}" for number in range(1 + bool(header), 21 + bool(header))]


def test_any_file_system_of_fsspec_is_read():
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/a/1.jsonl", b'{"text": "a"}\n')
    memory.pipe("/bucket/a/2.jsonl", b'{"text": "b"}')
    for uri in ("memory://bucket/a/", "memory://bucket/a/*.jsonl"):
        source, fragments = inspect(uri, Wanted({"text": "text"}), None, "memory", {})
        tables = [table for fragment in fragments for table in source.tables(**fragment)]
        assert [row["text"] for table in tables for row in table.to_pylist()] == ["a", "b"]


def test_object_storage_gets_endpoint_and_region():
    storage = Storage(endpoint="https://minio.clinic:9000", region="eu-1")
    client = {"endpoint_url": "https://minio.clinic:9000", "region_name": "eu-1"}
    protocol, options = filesystem_options("s3://bucket/d.csv", storage)
    assert (protocol, options["client_kwargs"]) == ("s3", client)
    assert options["config_kwargs"]["read_timeout"] < 60, "a request without an answer must end, so that it is repeated"
    assert "client_kwargs" not in filesystem_options("s3://bucket/d.csv", Storage())[1]
    assert filesystem_options("hf://datasets/a/b", storage) == ("hf", {})
    assert filesystem_options("a/b.csv", storage) == ("file", {})


@pytest.mark.parametrize("name", ["d.parquet", "d.jsonl", "d.csv", "d.tsv.gz", "d.jsonl.zst"])
def test_every_format_is_read_from_a_real_object_store(s3_bucket, name):
    """The endpoint comes from the manifest's spec.storage, the keys from the environment."""
    uri = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    protocol, options = filesystem_options(uri, Storage(endpoint=s3_bucket.endpoint, region="us-east-1"))
    table = pa.table({"text": ["a", "b"], "label": ["0", "1"]})
    with fsspec.open(f"{uri}/{name}", "wb", **options) as file:
        if name.endswith(".parquet"):
            pq.write_table(table, file)
        else:
            separator = "\t" if ".tsv" in name else ","
            lines = [separator.join(row) for row in [("text", "label"), ("a", "0"), ("b", "1")]]
            if ".jsonl" in name:
                lines = [json.dumps(row) for row in table.to_pylist()]
            content = "".join(f"{line}\n" for line in lines).encode()
            codec = {"gz": "gzip", "zst": "zstd"}.get(name.rpartition(".")[2])
            file.write(pa.compress(content, codec, asbytes=True) if codec else content)
    for place in (uri, f"{uri}/{name}", f"{uri}/d.*"):
        source, fragments = inspect(place, Wanted(TEXT_LABEL), None, protocol, options)
        [found] = [each for fragment in fragments for each in source.tables(**fragment)]
        assert found.select(["text", "label"]).to_pylist() == table.to_pylist()
        assert source.place(found["file"][1].as_py(), found["at"][1].as_py()).startswith(f"{uri[5:]}/{name}, ")


def test_object_that_marks_a_folder_is_no_file(s3_bucket):
    """Consoles and other tools write one to show an empty folder."""
    folder = f"{BUCKET}/{uuid.uuid4().hex}"
    protocol, options = filesystem_options("s3://", Storage(endpoint=s3_bucket.endpoint, region="us-east-1"))
    filesystem = fsspec.filesystem(protocol, **options)
    for name in ("", "sub/"):
        filesystem.call_s3("put_object", Bucket=BUCKET, Key=f"{folder}/{name}".partition("/")[2], Body=b"")
    filesystem.pipe(f"{folder}/sub/d.csv", b"text\na\n")
    source, _ = inspect(f"s3://{folder}", Wanted({"text": "text"}), None, protocol, options)
    assert source.summary == f"Reading 1 csv file at s3://{folder}"


def test_missing_bucket_or_credentials_are_reported(s3_bucket, monkeypatch):
    storage = Storage(endpoint=s3_bucket.endpoint)
    for uri, key in ((f"s3://{BUCKET}/nowhere", None), ("s3://nobucket/d.csv", None), (f"s3://{BUCKET}/", "wrong")):
        if key is not None:
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
            S3FileSystem.clear_instance_cache()
        protocol, options = filesystem_options(uri, storage)
        with pytest.raises((UnreadableDataError, DataError), match=r"spec\.dataset\.uri") as refused:
            inspect(uri, Wanted(TEXT_LABEL), None, protocol, options)
        assert "\n" not in str(refused.value)
