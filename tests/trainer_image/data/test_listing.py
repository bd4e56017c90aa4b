"""Files with several names, links and compressed copies: each file is read once, and different files are all read."""

import bz2
import gzip

import fsspec
import pyarrow as pa
import pytest

from e2e.platform.trainer.data_files import TEXT_LABEL, rows_at
from tensorguard.data.errors import DataError
from tensorguard.data.listing import inspect

ROWS = "text,label\na,1\nb,0\n"


@pytest.fixture
def named_twice(tmp_path):
    """Makes a folder in which `d.csv` has a second name of this kind."""

    def make(kind):
        folder = tmp_path / "data"
        folder.mkdir()
        first = folder / "d.csv"
        first.write_text(ROWS)
        if kind == "hard link":
            (folder / "e.csv").hardlink_to(first)
        elif kind == "symbolic link":
            (folder / "e.csv").symlink_to(first)
        elif kind == "two symbolic links to a file elsewhere":
            elsewhere = first.rename(tmp_path / "elsewhere.csv")
            for name in ("d.csv", "e.csv"):
                (folder / name).symlink_to(elsewhere)
        else:
            (folder / f"d.csv{kind}").write_bytes(CODECS[kind](ROWS.encode()))
        return folder

    return make


CODECS = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": lambda text: pa.compress(text, "zstd", asbytes=True)}
KINDS = ["hard link", "symbolic link", "two symbolic links to a file elsewhere", *CODECS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("uri", ["", "*", "d*"])
def test_file_with_two_names_is_read_once(named_twice, kind, uri):
    folder = named_twice(kind)
    assert rows_at(folder / uri if uri else folder) == [{"text": "a", "label": "1"}, {"text": "b", "label": "0"}]


def test_link_to_a_folder_is_refused(tmp_path):
    """fsspec does not follow it: the job would read a part of the data."""
    for name in ("data/sub", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "d.csv").write_text(ROWS)
    (tmp_path / "data/.hidden").symlink_to(tmp_path / "other")
    assert len(rows_at(tmp_path / "data")) == 2
    (tmp_path / "data/sub/more").symlink_to(tmp_path / "other")
    with pytest.raises(
        DataError, match=r"^spec.dataset.uri: .*/data/sub/more is a link to a folder, which is not followed"
    ):
        rows_at(tmp_path / "data")
    for pattern in ("**/*.csv", "*/*/*.csv", "s*/*.csv"):
        with pytest.raises(DataError, match="/data/sub/more is a link to a folder"):
            rows_at(tmp_path / "data" / pattern)


def test_chain_of_names_is_one_file(tmp_path):
    """d.csv.gz is beside d.csv and linked to e.csv.gz, which is beside e.csv.zst."""
    (tmp_path / "d.csv").write_text(ROWS)
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    (tmp_path / "e.csv.gz").hardlink_to(tmp_path / "d.csv.gz")
    (tmp_path / "e.csv.zst").write_bytes(CODECS[".zst"](ROWS.encode()))
    assert len(rows_at(tmp_path)) == 2
    _, fragments = inspect(str(tmp_path), TEXT_LABEL, None, "file", {}, "spec.dataset")
    assert [fragment["path"] for fragment in fragments] == [str(tmp_path / "d.csv")]


def test_different_files_with_similar_names_are_all_read(tmp_path):
    for name in ("d.csv", "e.csv", "sub/d.csv", "d.part.csv", "d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(ROWS)
    with gzip.open(tmp_path / "f.csv.gz", "wt") as file:
        file.write(ROWS)
    assert len(rows_at(tmp_path)) == 2 * 5


def test_link_to_a_file_is_read_and_a_broken_link_is_left_out(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere.csv").write_text(ROWS)
    (tmp_path / "data" / "d.csv").symlink_to(tmp_path / "elsewhere.csv")
    (tmp_path / "data" / "broken.csv").symlink_to(tmp_path / "nowhere.csv")
    assert len(rows_at(tmp_path / "data")) == 2


def test_object_beside_its_compressed_copy_is_read_once():
    filesystem = fsspec.filesystem("memory")
    for name, content in (
        ("d.csv", ROWS.encode()),
        ("d.csv.gz", gzip.compress(ROWS.encode())),
        ("e.csv", b"text\nc\n"),
    ):
        filesystem.pipe(f"/twice/{name}", content)
    _, fragments = inspect("memory://twice", {"text": "text"}, None, "memory", {}, "spec.dataset")
    assert [fragment["path"] for fragment in fragments] == ["/twice/d.csv", "/twice/e.csv"]
