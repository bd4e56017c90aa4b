"""Listing and reading without Ray: every format, any file system, and the errors that refuse a data set."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorguard.data import listing
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.files import Source
from tensorguard.data.formats import format_named
from tensorguard.data.listing import inspect
from tensorguard.data.packed import tables_in
from tensorguard.data.raw_table import Wanted, python_values
from tensorguard.data.read import _raw_block, _read_fragments
from tests.support.trainer.data_files import TEXT_LABEL, refusal, rows_at


def test_jsonl_values_keep_their_types(tmp_path):
    path = tmp_path / "d.jsonl"
    chat = [{"role": "user", "content": "é"}]
    lines = [json.dumps({"m": chat, "u": 7}), "", json.dumps({"m": "\ud800", "u": "7"}), " \t", '{"u": 7.5}']
    path.write_text("\n".join(lines))
    assert rows_at(path, {"messages": "m", "user": "u"}) == [
        {"m": chat, "u": 7},
        {"m": "\ud800", "u": "7"},
        {"m": None, "u": 7.5},
    ]


BROKEN = {
    "[": "JSON array",
    "[1]": "JSON array",
    '{"text": "a", "label": 1},': "ends in a comma",
    "{": "does not end in it",
    '{"text": "secret"} {"text": "b"}': "more than one JSON value",
    '{"text": "secret", "text": "b"}': "a key occurs twice",
    "{'text': 'secret'}": "a Python dict",
    '"{\\"text\\": \\"secret\\"}"': "encoded twice",
    "7": "no object",
    "null": "no object",
    "secret": "not JSON",
    "version https://git-lfs.github.com/spec/v1": "git lfs pull",
    '{"text": "a", "n": ' + "9" * 5000 + "}": "not JSON",
}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("line", "cause"), BROKEN.items(), ids=list(BROKEN.values()))
def test_line_that_is_not_one_object_is_refused_with_its_number_and_the_fix(tmp_path, line, cause, parts):
    """Each line of a file is one record: a line that is dropped could be any number of records."""
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a"}\n' * 150 + "\n" + line + "\n" + '{"text": "b"}\n' * 150)
    source = Source("file", {}, format_named("jsonl"), Wanted({"text": "text"}))
    with pytest.raises(UnreadableDataError) as error:
        for part in range(parts):
            list(source.tables(str(path), part, parts))
    assert "d.jsonl, line 152: " in str(error.value) and cause in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("first", ['{"text": "%s"}', '{"note": "%s"}', "%s"])
def test_long_first_record_does_not_hide_the_columns_of_others(tmp_path, first):
    path = tmp_path / "d.jsonl"
    path.write_text(first % ("a" * 1_100_000) + "\n" + '{"text": "b", "label": 1}\n' * 3)
    if first == "%s":
        assert "d.jsonl, line 1: " in refusal(path)
    else:
        assert [row["label"] for row in rows_at(path) if row["text"] == "b"] == [1] * 3


def test_field_that_a_block_of_ray_lacks_is_null():
    """Ray makes it null where another record of the block has it, and no record may decide on others."""
    lacking, with_null = pa.table({"text": ["a", "b"]}), pa.table({"text": ["a", "b"], "id": pa.nulls(2)})
    wanted = Wanted({"text": "text", "user": "id"})
    [one], [other] = (list(tables_in(_raw_block(block, wanted))) for block in (lacking, with_null))
    assert one.equals(other) and one.column("user").to_pylist() == [None, None]


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
    assert f"{name}: its text is not UTF-8: save it as UTF-8" in refusal(written(notes, "latin-1"))
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        assert f"{name}: its text is UTF-16 or UTF-32: save it as UTF-8" in refusal(written(notes, encoding))
    assert rows_at(written(notes, "utf-8"))[0]["text"] == "fi\u00e8vre 0"
    found = records_and_faults(written(["fever", *notes[:9]], "latin-1"))
    assert found == [("fever", None)] + [(None, "NotUtf8")] * 9


def records_and_faults(path):
    source, fragments = inspect(str(path), Wanted(TEXT_LABEL), None, "file", {})
    tables = [table for fragment in fragments for table in source.tables(**fragment)]
    return [(row["text"], row["fault"]) for table in tables for row in table.to_pylist()]


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
    with pytest.raises(UnreadableDataError, match=rf"b\.{kind}: its text is not UTF-8"):
        rows_at(tmp_path)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_line_that_is_too_long_is_refused(tmp_path, monkeypatch, parts):
    monkeypatch.setattr("tensorguard.data.formats.text.MAX_LINE_BYTES", 40)
    monkeypatch.setattr("tensorguard.data.formats.text.BUFFER_BYTES", 16)
    path = tmp_path / "d.jsonl"
    for texts, number in ((["a", "b" * 26, "c" * 26, "d" * 28, "f"], 4), (["a", "e" * 500, "f"], 2)):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        source = Source("file", {}, format_named("jsonl"), Wanted({"text": "text"}))
        with pytest.raises(UnreadableDataError, match=rf"d\.jsonl, line {number}: it has 32 MiB or more"):
            for part in range(parts):
                list(source.tables(str(path), part, parts))


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
    source = Source("file", {}, format_named(form), Wanted({"text": "text"}))
    found = [
        text
        for part in range(5)
        for rows in source.rows(str(path), part, 5)
        for text in python_values(rows.columns["text"])
    ]
    assert sorted(found) == sorted(text.removeprefix("\ufeff") if form == "tsv" else text for text in texts)


def test_files_with_other_types_give_the_same_records(tmp_path):
    """One task of Ray reads several files: no file changes the records of another one."""
    values = [pa.array([1, 2]), pa.array([1.0, 2.0]), pa.array(["1", "2"]), pa.array(["1", "2"]).dictionary_encode()]
    for number, column in enumerate(values):
        pq.write_table(pa.table({"text": ["a", "b"], "label": column}), tmp_path / f"{number}.parquet")
    source, fragments = inspect(str(tmp_path), Wanted(TEXT_LABEL), None, "file", {})
    tables = [t for block in _read_fragments(pa.Table.from_pylist(fragments), source) for t in tables_in(block)]
    assert [table.column("label").to_pylist() for table in tables] == [["1", "2"]] * 4
    assert len({table.schema for table in tables}) == 1


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_file_that_grows_while_it_is_read_is_read_as_it_was_listed(form, tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "FRAGMENT_BYTES", 60)
    path = tmp_path / f"d.{form}"
    lines = [json.dumps({"text": f"n{i}"}) if form == "jsonl" else f"n{i}" for i in range(200)]
    path.write_text("\n".join([*(["text"] if form == "tsv" else []), *lines[:100], ""]))
    source, fragments = inspect(str(path), Wanted({"text": "text"}), None, "file", {})
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
    count = {
        n: len(inspect(str(tmp_path / n), Wanted({"text": "text"}), None, "file", {})[1]) for n in ("d.tsv", "d.csv")
    }
    assert count == {"d.tsv": 5, "d.csv": 1}


def test_missing_column_error_names_the_nearest_column(tmp_path):
    for near in ("texts", "TEXT", "Text"):
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
            list(
                Source("file", {}, format_named(name[2:]), Wanted({"text": "text"})).tables(str(tmp_path / name), 0, 1)
            )
        assert str(error.value).endswith(expected)
    (tmp_path / "one.csv").write_text("Jane Doe has HIV;1;text: HIV\nx;0;y\n")
    assert refusal(tmp_path / "one.csv").endswith(
        "it has one column: separate the values by commas in a .csv file, and by tabs in a .tsv file"
    )
    (tmp_path / "d.jsonl").write_text('{"Jane Doe": "HIV", "l\u00e1bel": 1, "text\\n": 2}\n')
    message = refusal(tmp_path / "d.jsonl")
    assert message.endswith("has no column 'label'; write the name as the records spell it")


def test_nulls_of_databases_are_no_value(tmp_path):
    (tmp_path / "d.csv").write_text('text,id\na,\\N\n\\N,7\nb,NULL\nc,"7"\n')
    columns = {"text": "text", "user": "id"}
    assert rows_at(tmp_path / "d.csv", columns) == [
        {"text": "a", "id": None}, {"text": None, "id": "7"}, {"text": "b", "id": "NULL"}, {"text": "c", "id": "7"}
    ]  # fmt: skip
    source, [fragment] = inspect(str(tmp_path), Wanted(columns, nulls=frozenset(["NULL"])), None, "file", {})
    [table] = source.tables(**fragment)
    assert table.column("user").to_pylist()[2] is None


def test_classes_of_a_hugging_face_data_set_count_by_name_in_its_parquet_files(tmp_path):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features).to_parquet(tmp_path / "d.parquet")
    for named, labels in ((True, ["neg", "pos"]), (False, ["0", "1"])):
        source, [fragment] = inspect(str(tmp_path), Wanted(TEXT_LABEL, named_classes=named), None, "file", {})
        [table] = source.tables(**fragment)
        assert table.column("label").to_pylist() == labels


def test_column_of_each_file_is_checked(tmp_path):
    for kind, lines in {
        "csv": ("text,label\na,1\n", "text\na\n"),
        "jsonl": ('{"text": "a", "label": 1}\n', '{"text": "a"}\n'),
    }.items():
        folder = tmp_path / kind
        folder.mkdir()
        for number, content in enumerate(lines):
            (folder / f"{number}.{kind}").write_text(content)
        with pytest.raises(DataError, match=rf"1\.{kind} has no column 'label'"):
            rows_at(folder)


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
    assert "a.json, line 1: it begins a JSON array" in refusal(tmp_path / "a.json")
    (tmp_path / "d.csv").write_text("text,label\n")
    assert "holds csv and jsonl files" in refusal(tmp_path)
    (tmp_path / "d.parquet").write_text("this is no parquet")
    assert refusal(tmp_path / "d.parquet").endswith(
        "as parquet (ArrowInvalid): check the file, or set spec.dataset.format"
    )


def test_error_of_a_corrupt_file_reveals_no_content(tmp_path):
    (tmp_path / "d.parquet").write_bytes(b"my secret record")
    with pytest.raises(DataError) as error:
        list(
            Source("file", {}, format_named("parquet"), Wanted({"text": "text"})).tables(
                str(tmp_path / "d.parquet"), 0, 1
            )
        )
    assert "secret" not in str(error.value)
