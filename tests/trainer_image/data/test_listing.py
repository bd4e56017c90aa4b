"""Which files of an address are read: each content once, different files all, and what is left out is named."""

import bz2
import gzip

import fsspec
import pyarrow as pa
import pytest

from tensorguard.data.addresses import list_files
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.listing import files_at, inspect
from tensorguard.data.raw_table import Wanted
from tests.support.trainer.data_files import TEXT_LABEL, refusal, rows_at

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
    _, fragments = inspect(str(tmp_path), Wanted(TEXT_LABEL), None, "file", {})
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
    _, fragments = inspect("memory://twice", Wanted({"text": "text"}), None, "memory", {})
    assert [fragment["path"] for fragment in fragments] == ["/twice/d.csv", "/twice/e.csv"]


def summary_of(uri, form=None, protocol="file"):
    source, _ = inspect(str(uri), Wanted({"text": "text"}), form, protocol, {})
    return source.summary


def write(folder, *names, text="text\na\n"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_files_are_counted_and_those_left_out_are_named(tmp_path):
    write(tmp_path, "2023.tab", "2024.csv", "events.csv.1", "sub/more.csv")
    assert summary_of(tmp_path) == (
        f"Reading 2 csv files at {tmp_path}; left out: 2023.tab, events.csv.1 (no known ending)"
    )
    assert summary_of(tmp_path, "csv") == f"Reading 4 csv files at {tmp_path}"
    assert summary_of(tmp_path / "sub") == f"Reading 1 csv file at {tmp_path}/sub"
    assert summary_of(tmp_path / "s*/*.csv") == f"Reading 1 csv file at {tmp_path}/s*/*.csv"


def test_hidden_names_come_last_and_a_hidden_folder_is_one_name(tmp_path):
    write(tmp_path, "a.csv", "_SUCCESS", ".DS_Store", "year/._SUCCESS.crc", "_temporary/0/a.csv", "_temporary/1/b.csv")
    write(tmp_path, "part-00000")
    write(tmp_path, "empty.csv", text="")
    (tmp_path / "gone.csv").symlink_to("nowhere")
    assert summary_of(tmp_path).partition("; left out: ")[2] == (
        "part-00000 (no known ending); gone.csv (not a file, or a broken link); empty.csv (empty); "
        ".DS_Store, _SUCCESS, _temporary, year/._SUCCESS.crc (hidden)"
    )


def test_copies_and_further_names_are_left_out_by_name(named_twice):
    folder = named_twice(".gz")
    (folder / "e.csv").hardlink_to(folder / "d.csv")
    assert summary_of(folder).partition("; left out: ")[2] == (
        "e.csv (another name of d.csv); d.csv.gz (same content as d.csv)"
    )


def test_folder_that_a_pattern_matches_is_named_unless_its_files_are_read(tmp_path):
    write(tmp_path, "a.csv", "2023/b.csv")
    assert summary_of(tmp_path / "*").endswith("; left out: 2023 (a folder)")
    assert "left out" not in summary_of(tmp_path / "**")


def test_at_most_ten_names_are_listed(tmp_path):
    write(tmp_path, "a.csv", *(f"part-{i:05}" for i in range(14)), "_SUCCESS")
    found = summary_of(tmp_path)
    assert "part-00009 (no known ending); and 5 more" in found and "part-00010" not in found
    listing = list_files(fsspec.filesystem("file"), str(tmp_path), None)
    assert len(listing.left_out) == 15


def test_name_that_is_not_printable_is_escaped(tmp_path):
    write(tmp_path, "a.csv", "two\nlines")
    assert r"'two\nlines' (no known ending)" in summary_of(tmp_path)


def test_folder_of_unknown_endings_is_refused_with_their_names(tmp_path):
    write(tmp_path, "2023.tab")
    assert refusal(tmp_path, {"text": "text"}) == (
        f"spec.dataset.uri: there is no data at {tmp_path} (left out: 2023.tab (no known ending)): set `format`, or "
        "rename the files"
    )


@pytest.mark.parametrize("ending", CODECS)
@pytest.mark.parametrize("uri", ["", "*", "d*"])
def test_plain_and_compressed_file_of_one_name_with_different_records_are_refused(tmp_path, ending, uri):
    (tmp_path / "d.csv").write_text(ROWS)
    (tmp_path / f"d.csv{ending}").write_bytes(CODECS[ending](ROWS.encode() + b"c,1\n"))
    message = refusal(tmp_path / uri if uri else tmp_path)
    assert message == (
        f"spec.dataset.uri: {tmp_path}/d.csv and {tmp_path}/d.csv{ending} have one name and different content: remove "
        "the one that is out of date, or rename one if both hold records of their own"
    )
    assert len(rows_at(tmp_path / "d.csv")) == 2, "a file that is named alone is read"


def test_two_compressed_files_of_one_name_with_different_records_are_refused(tmp_path):
    for ending, codec in CODECS.items():
        (tmp_path / f"d.csv{ending}").write_bytes(codec(ROWS.encode()))
    assert len(rows_at(tmp_path)) == 2
    (tmp_path / "d.csv.zst").write_bytes(CODECS[".zst"](ROWS.encode() * 2))
    assert "d.csv.zst have one name and different content" in refusal(tmp_path)


def test_copy_that_cannot_be_decompressed_is_refused(tmp_path):
    (tmp_path / "d.csv").write_text(ROWS)
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(ROWS.encode())[:-6])
    with pytest.raises(UnreadableDataError, match=r"cannot read .*/d\.csv\.gz: the \.gz archive is truncated"):
        summary_of(tmp_path)


def test_objects_of_one_name_with_different_records_are_refused():
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe("/twins/d.csv", ROWS.encode())
    filesystem.pipe("/twins/d.csv.gz", gzip.compress(ROWS.encode() * 2))
    assert "/twins/d.csv.gz have one name and different content" in refusal("memory://twins", protocol="memory")


def test_folder_whose_name_has_wildcards_is_a_folder_in_a_pattern_too(tmp_path):
    folder = tmp_path / "a[1]*"
    write(folder, "x1.csv", "x[1].csv", "sub/y.csv")
    write(tmp_path, "a1b/x1.csv", "a1b/sub/y.csv")

    def names(pattern):
        listing = list_files(fsspec.filesystem("file"), str(folder / pattern), None)
        assert listing.base == str(folder / pattern.rpartition("/")[0] if pattern == "sub/y*" else folder)
        return [name.removeprefix(f"{folder}/") for name in listing.files]

    assert names("*.csv") == ["x1.csv", "x[1].csv"]
    assert names("x[12].csv") == ["x1.csv"]
    assert names("x[1].csv") == ["x[1].csv"], "an address that exists is no pattern"
    assert names("*/*.csv") == names("sub/y*") == ["sub/y.csv"]
    assert names("**/*.csv") == ["sub/y.csv", "x1.csv", "x[1].csv"]


def test_public_file_is_found_by_each_of_its_names(tmp_path):
    """Also if a compressed copy has other content: it may have been the same before a record was added."""
    write(tmp_path, "d.csv", text=ROWS)
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(ROWS.encode() * 2))
    plain, compressed = (files_at(str(tmp_path / name), None, None) for name in ("d.csv", "d.csv.gz"))
    assert plain.keys() & compressed.keys() == {f"file:{tmp_path}/d.csv"}
    assert files_at(str(tmp_path), None, None).keys() == plain.keys() | compressed.keys()
