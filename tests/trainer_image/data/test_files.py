"""Listing and reading without Ray: every format, any file system, and the errors that refuse a data set."""

import gzip
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.platform.trainer.data_files import TEXT_LABEL, refusal, rows_at
from tensorguard.data import listing
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.files import Source
from tensorguard.data.formats import format_named
from tensorguard.data.keys import user_of
from tensorguard.data.listing import inspect
from tensorguard.data.packed import tables_in
from tensorguard.data.read import _pack_columns, _read_fragments, _records_table
from tensorguard.data.records import records_of


def test_jsonl_keeps_other_values_as_json_and_drops_lines_that_are_not_objects(tmp_path):
    path = tmp_path / "d.jsonl"
    chat = [{"role": "user", "content": "é"}]
    lines = [json.dumps({"m": chat, "u": 7}), "{broken", "[1]", "", json.dumps({"m": "\ud800", "u": float("nan")})]
    path.write_text("\n".join(lines))
    assert rows_at(path, {"messages": "m", "user": "u"}) == [
        {"m": json.dumps(chat, ensure_ascii=False), "u": "7"},
        {"m": "?", "u": None},
    ]


@pytest.mark.parametrize("first", ['{"text": "%s"}', '{"note": "%s"}', "%s"])
def test_long_first_record_does_not_hide_the_columns_of_others(tmp_path, first):
    path = tmp_path / "d.jsonl"
    path.write_text(first % ("a" * 1_100_000) + "\n" + '{"text": "b", "label": 1}\n' * 3)
    assert [row["label"] for row in rows_at(path) if row["text"] == "b"] == ["1"] * 3


def test_field_that_a_block_of_ray_lacks_is_null():
    """Ray makes it null where another record of the block has it, and no record may decide on others."""
    lacking, with_null = pa.table({"text": ["a", "b"]}), pa.table({"text": ["a", "b"], "id": pa.nulls(2)})
    [one], [other] = (list(tables_in(_pack_columns(block, ["text", "id"]))) for block in (lacking, with_null))
    assert one.to_pylist() == other.to_pylist() == [{"text": "a", "id": None}, {"text": "b", "id": None}]


@pytest.mark.parametrize("name", ["d.csv", "d.tsv", "d.jsonl", "d.csv.gz"])
def test_file_in_another_encoding_is_refused(tmp_path, name):
    """Otherwise all accents would be lost without a word. One record can have bytes of any kind."""

    def written(rows, encoding):
        if "jsonl" in name:
            lines = [json.dumps({"text": text, "label": "1"}, ensure_ascii=False) for text in rows]
        else:
            lines = [f"{text},1".replace(",", "\t" if "tsv" in name else ",") for text in ["text", *rows]]
            lines[0] = lines[0].replace("1", "label")
        content = "".join(line + "\n" for line in lines).encode(encoding)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        return tmp_path / name

    notes = [f"fi\u00e8vre {i}" for i in range(20)]
    for encoding in ("latin-1", "utf-16"):
        assert f"{name} is not UTF-8: save it as UTF-8" in refusal(written(notes, encoding))
    assert rows_at(written(notes, "utf-8"))[0]["text"] == "fi\u00e8vre 0"
    assert rows_at(written(["fever", *notes[:9]], "latin-1"))[1]["text"] == "fi\ufffdvre 0"
    if name == "d.jsonl":
        for first, encoding in (("f\xe8" * 3, "latin-1"), ("fever", "utf-16")):
            record = written([first], encoding).read_bytes()
            path = written(["fever"] * 100, "utf-8")
            path.write_bytes(record + path.read_bytes())
            assert len(rows_at(path)) >= 99, "one record must not stop a job"


def test_csv_record_of_many_lines_counts_once_for_the_encoding(tmp_path):
    lines = "".join(f"fi\u00e8vre {i}\n" for i in range(20))
    (tmp_path / "d.csv").write_bytes(f'text,label\n"{lines}",1\nfever,0\n'.encode("latin-1"))
    assert len(rows_at(tmp_path / "d.csv")) == 2


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_encoding_of_each_file_is_checked(tmp_path, kind):
    for name, encoding in (("a", "utf-8"), ("b", "latin-1")):
        texts = [f"fi\u00e8vre {i}" for i in range(20)]
        lines = (
            [f'{{"text": "{text}", "label": 1}}' for text in texts]
            if kind == "jsonl"
            else ["text,label", *(f"{text},1" for text in texts)]
        )
        (tmp_path / f"{name}.{kind}").write_bytes("".join(line + "\n" for line in lines).encode(encoding))
    with pytest.raises(UnreadableDataError, match=rf"b\.{kind} is not UTF-8"):
        rows_at(tmp_path)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_line_that_is_too_long_is_dropped_alone(tmp_path, monkeypatch, parts):
    monkeypatch.setattr("tensorguard.data.formats.text.MAX_LINE_BYTES", 40)
    monkeypatch.setattr("tensorguard.data.formats.text.BUFFER_BYTES", 16)
    texts = ["a", "b" * 26, "c" * 27, "d" * 28, "e" * 500, "f", "g" * 100]
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = Source("file", {}, format_named("jsonl"), ("text",))
    tables = [table for part in range(parts) for table in source.tables(str(path), part, parts)]
    assert [row["text"] for table in tables for row in table.to_pylist()] == ["a", "b" * 26, "c" * 27, "f"]


def test_parquet_reads_only_the_named_columns_and_keeps_types(tmp_path):
    table = pa.table({"text": ["a", None], "label": [1, 2], "secret": ["x", "y"]})
    pq.write_table(table, tmp_path / "d.parquet")
    assert rows_at(tmp_path / "d.parquet") == [{"text": "a", "label": 1}, {"text": None, "label": 2}]


def test_directories_globs_and_compressed_files_are_read(tmp_path):
    for name in ("a.csv", "sub/b.csv", "_SUCCESS", ".hidden.csv", "readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text,label\n{name},1\n")
    with gzip.open(tmp_path / "c.csv.gz", "wt") as file:
        file.write("text,label\nzipped,1\n")
    assert {row["text"] for row in rows_at(tmp_path)} == {"a.csv", "sub/b.csv", "zipped"}
    assert {row["text"] for row in rows_at(tmp_path / "*.csv")} >= {"a.csv"}
    (tmp_path / "data").write_text("text,label\nnamed by format,1\n")
    assert rows_at(tmp_path / "data", form="csv") == [{"text": "named by format", "label": "1"}]


def test_malformed_row_drops_no_other_row(tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes(b"text,label\ngood,1\nshort\n\nlong,1,2,3\n\xff\xfe,0\nlast,0\n")
    assert rows_at(path) == [
        {"text": "good", "label": "1"},
        {"text": "short", "label": None},
        {"text": "\ufffd\ufffd", "label": "0"},
        {"text": "last", "label": "0"},
    ]


@pytest.mark.parametrize("form", ["tsv", "jsonl", "parquet"])
@given(texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters='\t\r\n"\\'), min_size=1), min_size=1))
@settings(max_examples=30)
def test_fragments_hold_every_row_once(tmp_path_factory, form, texts):
    path = tmp_path_factory.mktemp("tiles") / f"d.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=2)
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))
    else:
        path.write_text("text\n" + "".join(text + "\n" for text in texts))
    source = Source("file", {}, format_named(form), ("text",))
    found = [
        row["text"] for part in range(5) for table in source.tables(str(path), part, 5) for row in table.to_pylist()
    ]
    assert sorted(found) == sorted(text.removeprefix("\ufeff") if form == "tsv" else text for text in texts)


def test_tables_of_files_with_other_types_stay_apart(tmp_path):
    """One task of Ray reads several files, and Ray would give all tables of a task one type."""
    values = [pa.array([1, 2]), pa.array([1.5, 2.0]), pa.array(["1", "2"]), pa.array(["1", "2"]).dictionary_encode()]
    for number, column in enumerate(values):
        pq.write_table(pa.table({"text": ["a", "b"], "label": column}), tmp_path / f"{number}.parquet")
    source, fragments = inspect(str(tmp_path), TEXT_LABEL, None, "file", {}, "w")
    blocks = list(_read_fragments(pa.Table.from_pylist(fragments), source))
    joined = pa.concat_tables(blocks)
    tables = list(tables_in(joined))
    assert [table.schema.field("label").type for table in tables] == [column.type for column in values]
    assert [table.column("label").to_pylist() for table in tables] == [column.to_pylist() for column in values]


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_file_that_grows_while_it_is_read_is_read_as_it_was_listed(form, tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "FRAGMENT_BYTES", 60)
    path = tmp_path / f"d.{form}"
    lines = [json.dumps({"text": f"n{i}"}) if form == "jsonl" else f"n{i}" for i in range(200)]
    path.write_text("\n".join([*(["text"] if form == "tsv" else []), *lines[:100], ""]))
    source, fragments = inspect(str(path), {"text": "text"}, None, "file", {}, "w")
    assert len(fragments) > 3
    found = []
    for fragment in fragments:
        found += [row["text"] for table in source.tables(**fragment) for row in table.to_pylist()]
        with path.open("a") as file:
            file.write("\n".join([*lines[100:], ""]))
    assert found == [f"n{i}" for i in range(100)]


def test_large_files_are_split_except_csv(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "FRAGMENT_BYTES", 10)
    for name in ("d.tsv", "d.csv"):
        (tmp_path / name).write_text("text\tlabel\n".replace("\t", "," if "csv" in name else "\t") + "x\n" * 20)
    count = {n: len(inspect(str(tmp_path / n), {"text": "text"}, None, "file", {}, "w")[1]) for n in ("d.tsv", "d.csv")}
    assert count == {"d.tsv": 5, "d.csv": 1}


def test_missing_column_error_names_the_nearest_column(tmp_path):
    for near in ("texts", "TEXT", "Text "):
        for name in ("d.csv", "d.tsv", "d.jsonl"):
            header = f"label\t{near}\n1\ta\n"
            record = json.dumps({near: "a", "label": 1})
            (tmp_path / name).write_text({"d.csv": header.replace("\t", ","), "d.tsv": header}.get(name, record))
            message = refusal(tmp_path / name)
            assert message.startswith("spec.dataset.columns: ")
            assert message.endswith(f"has no column 'text'; did you mean {near!r}?")
    pq.write_table(pa.table({"x": ["a"]}), tmp_path / "d.parquet")
    assert refusal(tmp_path / "d.parquet").endswith("has no column 'text'; it has 'x'")
    (tmp_path / "d.tsv").write_text("a\tb\n")
    assert "has no column '2'; it has '0', '1'" in refusal(tmp_path / "d.tsv", {"text": "2"})
    assert "by its header, or all by position" in refusal(tmp_path / "d.tsv", {"text": "0", "label": "b"})


def test_jsonl_records_need_not_have_an_optional_column(tmp_path):
    """No tool may be called in the first records, and one record must not decide whether the job is refused."""
    columns = {"messages": "m", "tools": "t"}
    chat = [{"role": "user", "content": "a"}]
    (tmp_path / "d.jsonl").write_text(f"{json.dumps({'m': chat})}\n" * 2)
    assert [row["t"] for row in rows_at(tmp_path / "d.jsonl", columns)] == [None, None]
    assert "no column 'x'" in refusal(tmp_path / "d.jsonl", {"messages": "x", "tools": "t"})
    pq.write_table(pa.table({"m": [chat]}), tmp_path / "d.parquet")
    assert "no column 't'" in refusal(tmp_path / "d.parquet", columns)


def test_first_record_in_place_of_column_names_is_not_repeated(tmp_path):
    """A file without a header row, and records whose keys are data: the first record must not appear in a status."""
    for name in ("d.csv", "d.tsv"):
        (tmp_path / name).write_text(
            "Jane Doe has HIV,1,text: HIV\nx,0,y\n".replace(",", "," if "csv" in name else "\t")
        )
        expected = (
            "has no column 'text'; it has 3 columns; if the file has no header row, "
            'name columns by position ("0", "1")'
        )
        assert refusal(tmp_path / name).endswith(expected)
        with pytest.raises(DataError) as error:
            list(Source("file", {}, format_named(name[2:]), ("text",)).tables(str(tmp_path / name), 0, 1))
        assert str(error.value).endswith(expected)
    (tmp_path / "one.csv").write_text("Jane Doe has HIV;1;text: HIV\nx;0;y\n")
    assert refusal(tmp_path / "one.csv").endswith(
        "it has one column: separate the values by commas in a .csv file, and by tabs in a .tsv file"
    )
    (tmp_path / "d.jsonl").write_text('{"Jane Doe": "HIV", "t\u00e9xt": 1, "text\\n": 2}\n')
    message = refusal(tmp_path / "d.jsonl")
    assert message.endswith("has no column 'text'; write the name as the records spell it")


def test_user_id_is_the_same_in_every_format(tmp_path):
    """pandas writes 7 as 7.0 if another record of the file has no id."""
    ids = pd.DataFrame({"u": [7, None], "x": "x"})
    ids.to_csv(tmp_path / "a.csv", index=False)
    ids.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    ids.to_parquet(tmp_path / "a.parquet")
    ids.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    (tmp_path / "b.csv").write_text("u,x\n7, \n 007 , \n7e0, \n,x\n")
    (tmp_path / "b.tsv").write_text("u\tx\n7\t\n7.00\t\n\tx\n")
    (tmp_path / "b.jsonl").write_text(
        '{"u": 7}\n{"u": 7.0}\n{"u": "7"}\n{"u": 7e0}\n{"u": null}\n{"x": 1}\n{"u": NaN}\n'
    )
    pq.write_table(pa.table({"u": pa.array([7, None], pa.int64())}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"u": pa.array([Decimal("7.00"), None], pa.decimal128(9, 2))}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"u": pa.array(["7", " 7.0 ", ""]).dictionary_encode()}), tmp_path / "d.parquet")
    records = [{"u": u} for u in (7, 7.0, "7", b"7", Decimal("7.00"), np.float32(7), torch.tensor(7.0), None, pd.NA)]
    memory = _records_table(records, {"user": "u"}, "train_dataset").to_pylist()
    for rows in (*(rows_at(path, {"user": "u"}) for path in sorted(tmp_path.iterdir())), memory):
        assert {user_of(row["u"]) for row in rows} == {b"7", None}


def test_record_that_lacks_the_column_of_the_user_is_dropped(tmp_path):
    """As a unit by itself it could split a user. A null declares that the record has no user."""
    columns = {"text": "t", "user": "u"}
    records = [{"t": "a", "u": 7}, {"t": "b", "U": 7}, {"t": "c", "u": None}, {"t": "d"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "a.csv").write_text("t,u\na,7\nb\nc,\n")
    (tmp_path / "a.tsv").write_text("t\tu\na\t7\nb\nc\t\n")
    (tmp_path / "b.csv").write_text("u,t\n7,a\n,c\n")
    (tmp_path / "c.csv").write_text("a,7\nb\nc,\n")
    by_position = rows_at(tmp_path / "c.csv", {"text": "0", "user": "1"})
    assert [(row["0"], user_of(row["1"])) for row in by_position] == [("a", b"7"), ("c", None)]
    (tmp_path / "c.csv").unlink()
    memory = _records_table(records, columns, "train_dataset").to_pylist()
    tuples = _records_table(records_of([("a", 7), ("b",), ("c", None)], "x"), {"text": "0", "user": "1"}, "x")
    for rows in (*(rows_at(path, columns) for path in sorted(tmp_path.iterdir())), memory):
        assert [(row["t"], user_of(row["u"])) for row in rows] == [("a", b"7"), ("c", None)]
    assert tuples.column("0").to_pylist() == ["a", "c"]


def test_lists_of_words_and_tags_are_read_whatever_holds_them(tmp_path):
    words, tags = ["a", "b"], [0, 1]
    columns = {"tokens": "tokens", "tags": "tags"}
    found = []
    for name, kinds in {
        "list": (pa.list_(pa.string()), pa.list_(pa.int64())),
        "fixed": (pa.list_(pa.string(), 2), pa.list_(pa.int8(), 2)),
        "dictionary": (pa.list_(pa.dictionary(pa.int32(), pa.string())), pa.list_(pa.int64())),
    }.items():
        arrays = (pa.array([value], kind) for value, kind in zip((words, tags), kinds))
        pq.write_table(pa.table(dict(zip(columns, arrays))), tmp_path / f"{name}.parquet")
        found += rows_at(tmp_path / f"{name}.parquet", columns)
    in_memory = [tags, np.array(tags), [np.int64(0), np.int64(1)], torch.tensor(tags), (0, 1)]
    records = [{"tokens": words, "tags": each} for each in in_memory]
    found += _records_table(records, columns, "train_dataset").to_pylist()
    decoded = [
        {name: json.loads(value) if isinstance(value, str) else value for name, value in row.items()} for row in found
    ]
    assert decoded == [{"tokens": words, "tags": tags}] * 8


def test_unusable_addresses_are_refused(tmp_path):
    assert refusal(tmp_path / "none.csv").endswith("there is no such file or directory")
    assert "this kind of URI is not supported" in refusal("pvc://claim/d.csv", protocol="pvc")
    (tmp_path / "d.csv").touch()
    assert "there is no data at" in refusal(tmp_path / "d.csv")
    assert "there is no data at" in refusal(tmp_path)
    assert "there is no data at" in refusal(tmp_path / "*.parquet")
    (tmp_path / "d.txt").write_text("x")
    assert refusal(tmp_path / "d.txt").startswith("spec.dataset.format: ")
    (tmp_path / "a.json").write_text('[{"text": "a", "label": 1}]')
    assert "JSON array" in refusal(tmp_path / "a.json")
    (tmp_path / "d.csv").write_text("text,label\n")
    assert "holds csv and jsonl files" in refusal(tmp_path)
    (tmp_path / "d.parquet").write_text("this is no parquet")
    assert refusal(tmp_path / "d.parquet").endswith(
        "as parquet (ArrowInvalid): check the file, or set spec.dataset.format"
    )


def test_error_of_a_corrupt_file_reveals_no_content(tmp_path):
    (tmp_path / "d.parquet").write_bytes(b"my secret record")
    with pytest.raises(DataError) as error:
        list(Source("file", {}, format_named("parquet"), ("text",)).tables(str(tmp_path / "d.parquet"), 0, 1))
    assert "secret" not in str(error.value)
