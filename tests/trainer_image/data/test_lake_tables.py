"""Tables of Delta, Hudi and Iceberg are refused however their files are named; other folders are not."""

import io

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tensorguard.data.lake_tables import table_of
from tensorguard.data.listing import inspect
from tensorguard.data.raw_table import Wanted
from tests.support.trainer.data_files import refusal

COLUMNS = {"text": "text"}
LOGS = {
    "Delta": ["_delta_log/00000000000000000000.json"],
    "Hudi": [".hoodie/hoodie.properties"],
    "Iceberg": ["metadata/00001-1c6d0a2e-33f1-4c0b-9a55-0d0f5b8f7a11.metadata.json", "metadata/version-hint.text"],
}


def parquet():
    content = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"]}), content)
    return content.getvalue()


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    """An empty place in a file system: (its URI, a function that writes files to it)."""
    filesystem = fsspec.filesystem(request.param)
    root = str(tmp_path) if request.param == "file" else f"memory://{tmp_path.name}"

    def write(*names):
        for name in names:
            path = f"{root}/{name}"
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            filesystem.pipe(path, parquet() if name.endswith(".parquet") else b"{}\n")

    yield root, write
    if request.param == "memory":
        filesystem.rm(root, recursive=True)


def protocol_of(uri):
    return "memory" if uri.startswith("memory") else "file"


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize(
    "address",
    [
        "lake",
        "lake/notes",
        "lake/notes/data",
        "lake/notes/data/year=2024",
        "lake/notes/data/year=2024/0.parquet",
        "lake/notes/data/*/*.parquet",
        "lake/notes/**/*.parquet",
        "lake/*/data/*/*.parquet",
        "l*/**/*.parquet",
    ],
)
def test_table_is_refused_with_the_fix(store, kind, address):
    root, write = store
    write("lake/notes/data/year=2024/0.parquet", *(f"lake/notes/{name}" for name in LOGS[kind]))
    message = refusal(f"{root}/{address}", COLUMNS, protocol=protocol_of(root))
    assert (
        message.startswith("spec.dataset.uri: ")
        and f"/lake/notes is a table of {kind}, whose files also hold" in message
    )
    assert f'spark.read.format("{kind.lower()}").load(...)' in message


def test_metadata_of_a_table_is_not_read_as_records(store):
    """The data files of an Iceberg table may be of a format that is not read, and its metadata are JSON."""
    root, write = store
    write("notes/data/0.avro", *(f"notes/{name}" for name in LOGS["Iceberg"]))
    assert "is a table of Iceberg" in refusal(f"{root}/notes", COLUMNS, protocol=protocol_of(root))


def test_folders_that_only_look_like_tables_are_read(store):
    root, write = store
    write(
        "a/0.parquet",
        "a/metadata/1.parquet",
        "a/metadata/v1.txt",
        "a/metadata/scan.metadata.txt",
        "b/notes.jsonl",
        "b/hoodie/0.txt",
        "c/_delta_log/00000000000000000000.json",
        "c/0.parquet",
    )
    for address in ("a", "a/*.parquet", "a/0.parquet"):
        inspect(f"{root}/{address}", Wanted(COLUMNS), None, protocol_of(root), {})
    refusal(f"{root}/c", COLUMNS, protocol=protocol_of(root))


def test_hidden_table_of_which_nothing_is_read_is_no_reason_to_refuse(store):
    root, write = store
    write("a/0.parquet", "a/.trash/t/1.parquet", "a/.trash/t/_delta_log/00000000000000000000.json")
    inspect(f"{root}/a", Wanted(COLUMNS), None, protocol_of(root), {})


def test_link_to_a_file_of_a_table_is_refused(tmp_path):
    (tmp_path / "table/_delta_log").mkdir(parents=True)
    (tmp_path / "table/0.parquet").write_bytes(parquet())
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.parquet").symlink_to(tmp_path / "table/0.parquet")
    for address in ("data", "data/mine.parquet", "d*/*"):
        assert f"{tmp_path}/table is a table of Delta" in refusal(tmp_path / address, COLUMNS)


class CountingFileSystem(MemoryFileSystem):
    """Counts the requests that an object store would get; refuses to list what is not below `allowed`."""

    cachable = False
    allowed = ""
    requests = 0

    def ls(self, path, detail=True, **options):
        type(self).requests += 1
        if not path.startswith(self.allowed):
            raise PermissionError
        return super().ls(path, detail=detail, **options)

    def isdir(self, path):
        type(self).requests += 1
        if not path.startswith(self.allowed):
            raise PermissionError
        return super().isdir(path)


def test_few_requests_are_made_and_a_folder_that_may_not_be_listed_is_no_table():
    filesystem = CountingFileSystem()
    paths = [f"/bucket/a/b/year={year}/{part}.parquet" for year in range(9) for part in range(9)]
    for path in paths:
        filesystem.pipe(path, b"x")
    CountingFileSystem.requests, CountingFileSystem.allowed = 0, "/bucket/a/b"
    try:
        for listed in (paths, None):
            assert table_of(filesystem, paths, "/bucket/a/b", listed) is None
        assert CountingFileSystem.requests == 2 * 3 * len(["/bucket", "/bucket/a", "/bucket/a/b"])
        assert table_of(filesystem, paths, "/bucket/a/b", [*paths, "/bucket/a/b/_delta_log"]) is None
        filesystem.pipe("/bucket/a/b/_delta_log/0.json", b"{}")
        assert table_of(filesystem, paths, "/bucket/a/b", paths) == ("/bucket/a/b", "Delta")
    finally:
        CountingFileSystem.allowed = ""
        filesystem.rm("/bucket", recursive=True)
