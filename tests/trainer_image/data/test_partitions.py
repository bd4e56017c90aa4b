"""Columns in the names of folders, as `year=2024`: which folders count, and what their values are."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorguard.data.listing import inspect
from tensorguard.data.partitions import partition_values
from tensorguard.data.raw_table import Wanted
from tests.support.trainer.data_files import records_at, refusal


@pytest.mark.parametrize(
    ("path", "base", "values"),
    [
        ("/d/year=2024/id=7/a.csv", "/d", {"year": "2024", "id": "7"}),
        ("/d/year=2024/id=7/a.csv", "/d/year=2024", {"id": "7"}),
        ("bucket/d/id=7/deep/er/a.csv", "bucket/d", {"id": "7"}),
        ("/d/id=7/a.csv", "", {"id": "7"}),
        ("/d/name=Ann%20Lee%2F2/a.csv", "/d", {"name": "Ann Lee/2"}),
        ("/d/t%3D1=a=b/a.csv", "/d", {"t=1": "a=b"}),
        ("/d/id=__HIVE_DEFAULT_PARTITION__/a.csv", "/d", {"id": None}),
        ("/d/id=/a.csv", "/d", {"id": ""}),
        ("/d/=7/plain/a=b.csv", "/d", {}),
    ],
)
def test_folders_below_the_base_give_values(path, base, values):
    assert partition_values(path, base) == values


def test_column_in_the_names_of_two_folders_is_refused():
    with pytest.raises(ValueError, match="name the column 'id': rename one"):
        partition_values("/d/id=7/id=8/a.csv", "/d")


COLUMNS = {"text": "text", "user": "id"}


def write(folder, **columns):
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "part-0.parquet")
    (folder / "notes.jsonl").write_text('{"text": "a"}\n')
    (folder / "notes.csv").write_text("text\na\n")
    (folder / "bare.tsv").write_text("a\tb\n")


@pytest.mark.parametrize("name", ["part-0.parquet", "notes.jsonl", "notes.csv"])
def test_column_of_the_job_may_be_in_the_names_of_folders(tmp_path, name):
    write(tmp_path / "year=2024/id=7", text=["a"])
    for uri in (f"{tmp_path}/**/{name}", f"{tmp_path}/year=*/id=*/{name}", f"{tmp_path}/year=2024/*/{name}"):
        source, [fragment] = inspect(uri, Wanted(COLUMNS), None, "file", {})
        assert source.folder_columns(fragment["path"]) == {"id": "7"}, "and no column that the job does not name"
    for uri in (f"{tmp_path}/year=2024/id=7/{name}", f"{tmp_path}/year=2024/id=7/*{name[1:]}"):
        assert "no column 'id'" in refusal(uri, COLUMNS), "folders of the address itself do not count"


def test_folders_give_columns_of_an_address_that_is_a_folder(tmp_path):
    for number in (7, 8):
        (tmp_path / f"id={number}").mkdir()
        (tmp_path / f"id={number}/notes.csv").write_text("text\na\n")
    assert records_at(tmp_path, COLUMNS) == [{"text": "a", "user": "7"}, {"text": "a", "user": "8"}]


def test_folders_give_columns_beside_positions(tmp_path):
    write(tmp_path / "id=7", text=["a"])
    inspect(f"{tmp_path}/*/*.tsv", Wanted({"text": "0", "label": "1", "user": "id"}), None, "file", {})


def test_column_of_the_file_itself_is_checked_rather_than_the_folder(tmp_path):
    write(tmp_path / "id=7", text=["a"], id=[{"number": 7}])
    assert re.search(r"column 'id' \(user\) of .* is of type struct", refusal(f"{tmp_path}/*/*.parquet", COLUMNS))


def test_address_with_a_column_twice_is_refused(tmp_path):
    write(tmp_path / "id=7/id=8", text=["a"])
    assert refusal(f"{tmp_path}/**/*.csv", COLUMNS).startswith("spec.dataset.uri: two folders above ")


def test_value_of_a_record_comes_before_that_of_the_folder(tmp_path):
    """Whatever record comes first: in jsonl each record has its own columns."""
    lines = ['{"text": "a"}\n', '{"text": "b", "id": "p9"}\n']
    for number, order in ((7, lines), (8, lines[::-1])):
        (tmp_path / f"id={number}").mkdir()
        (tmp_path / f"id={number}/notes.jsonl").write_text("".join(order))
    found = records_at(tmp_path, COLUMNS)
    assert sorted(row["user"] for row in found if row["text"] == "a") == ["7", "8"]
    assert {row["user"] for row in found if row["text"] == "b"} == {"p9"}
