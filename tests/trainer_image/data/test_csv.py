"""Values separated by commas or tabs: quotes, rows of another length, and files without a header row."""

import csv
import io

import pandas as pd
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.files import Source
from tensorguard.data.formats import format_named
from tensorguard.data.raw_table import Wanted
from tests.support.trainer.data_files import refusal, rows_at

BY_POSITION = {"text": "0", "label": "1"}


def test_csv_reads_quoted_newlines_and_commas(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('label,other,text\n1,x,"one, ""two""\nthree"\n0,y,four\n', encoding="utf-8-sig")
    assert rows_at(path) == [{"text": 'one, "two"\nthree', "label": "1"}, {"text": "four", "label": "0"}]


@pytest.mark.parametrize("end", ["\n", ""])
def test_csv_with_a_quote_that_is_never_closed_is_refused_with_its_line(tmp_path, end):
    path = tmp_path / "d.csv"
    rows = ['"two\nlines",1', "Jane Doe,0", '"never closed,1', *["next,0"] * 5000]
    path.write_text("\n".join(["text,label", *rows]) + end)
    with pytest.raises(UnreadableDataError, match=r"d\.csv: the row that begins in line 5 has a quote") as error:
        rows_at(path)
    assert "Doe" not in str(error.value) and "\n" not in str(error.value)


def test_csv_header_with_a_quote_that_is_never_closed_is_refused(tmp_path):
    (tmp_path / "d.csv").write_text('text,"label\na,1\nb,0\n')
    assert "the row that begins in line 1 has a quote that is never closed" in refusal(tmp_path / "d.csv")


def test_csv_that_escapes_quotes_with_backslashes_is_refused_with_its_line(tmp_path):
    """Otherwise the first value would hold the record of another user."""
    path = tmp_path / "d.csv"
    path.write_text('text,label\nfirst,0\n"said \\"",0\nsecret of another user,1\n"\\" x",1\n')
    with pytest.raises(UnreadableDataError, match=r"d\.csv: the row that begins in line 3 has text after a") as error:
        rows_at(path)
    assert "secret" not in str(error.value)


def test_csv_whose_stray_quotes_pair_up_is_refused(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('text,label\n"first,0\nof another user,1\n"third,0\n')
    with pytest.raises(UnreadableDataError, match="the row that begins in line 2 has text after a closing quote"):
        rows_at(path)


@pytest.mark.parametrize("value", ["5'11\" tall", 'said "no"', "5'11\""])
def test_csv_whose_writer_does_not_quote_is_refused(tmp_path, value):
    """In such a file a value that begins with a quote swallows the records up to the next quote."""
    path = tmp_path / "d.csv"
    path.write_text(f"text,label\na,0\nb,1\n{value},0\nc,1\n")
    with pytest.raises(UnreadableDataError, match="line 4 has a quote in a value that is not quoted: quote") as error:
        rows_at(path)
    assert value not in str(error.value)


def test_csv_of_pandas_with_a_carriage_return_in_a_value_is_refused(tmp_path):
    """pandas does not quote it, and one record would be several: also records of other users."""
    frame = pd.DataFrame({"text": ["a", "hi\rother text\rx", "b"], "label": [0, 1, 0]})
    frame.to_csv(tmp_path / "d.csv", index=False)
    assert b"hi\rother" in (tmp_path / "d.csv").read_bytes()
    with pytest.raises(
        UnreadableDataError, match="line 3 has a carriage return in a value that is not quoted"
    ) as error:
        rows_at(tmp_path / "d.csv")
    assert "hi" not in str(error.value).removeprefix("spec.dataset.uri")
    frame.to_csv(tmp_path / "d.csv", index=False, lineterminator="\r\n", quoting=csv.QUOTE_NONNUMERIC)
    assert [row["text"] for row in rows_at(tmp_path / "d.csv")] == list(frame["text"])


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_rows_of_a_csv_file_end_in_one_way(tmp_path, end):
    path = tmp_path / "d.csv"
    path.write_bytes(end.join(["text,label", "a,1", "b,0"]).encode())
    assert [row["text"] for row in rows_at(path)] == ["a", "b"]
    path.write_bytes((end.join(["text,label", "a,1", "b,0"]) + ("\n" if end == "\r" else "\r") + "c,1").encode())
    with pytest.raises(UnreadableDataError, match="a carriage return in a value that is not quoted, or another end"):
        rows_at(path)


@pytest.mark.parametrize("end", ["\r", "\n", "\\\n"])
@pytest.mark.parametrize("written", [{}, {"sep": "\t"}], ids=["csv", "tsv"])
def test_file_with_a_row_that_is_too_long_is_refused(tmp_path, monkeypatch, written, end):
    """The end of such a row is not checked: what follows could be the record of another user."""
    monkeypatch.setattr("tensorguard.data.formats.csv.MAX_ROW_CHARACTERS", 1000)
    monkeypatch.setattr("tensorguard.data.formats.csv.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr("tensorguard.data.formats.text.MAX_LINE_BYTES", 1000)
    path = tmp_path / ("d.tsv" if written else "d.csv")
    text = ["b", "a" * 1001 + f"{end}alice{written.get('sep', ',')}never said", "a"]
    pd.DataFrame({"user": ["bob", "mallory", "alice"], "text": text}).to_csv(path, index=False, **written)
    with pytest.raises(UnreadableDataError, match=r"line 3 has (more than 32 Mi characters|32 MiB or more)"):
        rows_at(path, {"user": "user", "text": "text"})


@pytest.mark.parametrize(("name", "separator"), [("d.csv", ","), ("d.tsv", "\t")])
def test_file_with_a_row_of_too_many_values_is_refused(tmp_path, monkeypatch, name, separator):
    monkeypatch.setattr("tensorguard.data.formats.csv.MAX_ROW_SEPARATORS", 100)
    path = tmp_path / name
    path.write_text("a,1\n".replace(",", separator) * 2 + separator * 101 + "\n")
    with pytest.raises(UnreadableDataError, match=r"line 3 has more than .*1 Mi separators"):
        rows_at(path, BY_POSITION)


def test_quotes_in_a_quoted_csv_value_are_characters(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('text,label\n"5\'11"" tall",0\n"""b""","1"\n"",0\n"c,\nd""\n","2"\n')
    assert [row["text"] for row in rows_at(path)] == ["5'11\" tall", '"b"', "", 'c,\nd"\n']


def test_spaces_around_the_name_of_a_column_do_not_count(tmp_path):
    (tmp_path / "d.csv").write_text("text, label\u00a0\na,1\n")
    assert rows_at(tmp_path / "d.csv") == [{"text": "a", "label": "1"}]


@pytest.mark.parametrize(("name", "separator"), [("d.csv", ","), ("d.tsv", "\t")])
@pytest.mark.parametrize("row", ["hello, world,0", "a,1,", "b"])
def test_row_with_another_number_of_values_than_names_is_refused(tmp_path, name, separator, row):
    path = tmp_path / name
    path.write_text("\n".join(["text,label", "b,0", row]).replace(",", separator))
    with pytest.raises(
        UnreadableDataError, match=rf"{name}, line 3: the row has [13] values, and the first row of the file 2"
    ):
        rows_at(path)


@pytest.mark.parametrize(("name", "separator"), [("d.csv", ","), ("d.tsv", "\t")])
def test_separator_in_a_text_does_not_move_the_id_of_the_user(tmp_path, name, separator):
    """Writers that neither quote nor escape write `hello, world` as two values; an empty value may be at the end."""
    path = tmp_path / name
    for rows in (
        ["text,user,note", "hello,alice,", "m,alice,mallory,", "b,bob,c"],
        ["user,text,note", "0,alice,hello,", "bob,b,c"],  # as pandas writes an index without a name
    ):
        path.write_text("\n".join(rows).replace(",", separator))
        with pytest.raises(UnreadableDataError, match="the row has 4 values"):
            rows_at(path, {"text": "text", "user": "user"})


@pytest.mark.parametrize(("name", "separator"), [("d.csv", ","), ("d.tsv", "\t")])
def test_record_of_many_values_makes_no_columns_in_a_file_without_header(tmp_path, name, separator):
    path = tmp_path / name
    path.write_text(f"a{separator}1\n" + separator * 100_000 + "\n")
    source = Source("file", {}, format_named(name[2:]), Wanted({"text": "0", "label": "1"}))
    assert list(format_named(name[2:]).columns(source.file(str(path)), ["1"]).names) == ["0", "1"]


def test_name_of_several_columns_is_refused(tmp_path):
    """pandas writes such a header, and the first of them may be empty."""
    (tmp_path / "d.csv").write_text("text,label,label\na,,1\n")
    assert refusal(tmp_path / "d.csv").endswith("d.csv has several columns 'label': rename all but one")


VALUES = st.text(st.characters(codec="utf-8"), min_size=1) | st.sampled_from(['"', '""', "a\nb", "\r", ',"', ' "a"'])


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(VALUES, VALUES)), last=st.sampled_from(["", "\n", "\r\n", "\n\n"]), all_quoted=st.booleans()
)
@example(rows=[("0", "\\")], last="", all_quoted=True)
@settings(max_examples=60)
def test_csv_whose_quotes_are_closed_is_read_to_its_last_row(tmp_path_factory, rows, last, all_quoted):
    # A row that ends in a backslash outside quotes is refused: it may escape the newline.
    assume(all_quoted or not any(label.endswith("\\") for _, label in rows))
    path = tmp_path_factory.mktemp("closed") / "d.csv"
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL).writerows([("text", "label"), *rows])
    path.write_text(buffer.getvalue().removesuffix("\r\n") + last, encoding="utf-8", newline="")
    assert [(row["text"], row["label"]) for row in rows_at(path)] == rows


def test_tsv_has_no_quoting_and_may_lack_a_header(tmp_path):
    path = tmp_path / "d.tsv"
    path.write_text('an "odd quote\t1\nand "another"\t0\r\n')
    assert rows_at(path, BY_POSITION) == [{"0": 'an "odd quote', "1": "1"}, {"0": 'and "another"', "1": "0"}]


NOTE_OF_TWO_LINES = 'fever of "39"\nsince Monday'


@pytest.mark.parametrize(
    "written",
    [
        pytest.param({}, id="quotes are doubled"),
        pytest.param({"doublequote": False, "escapechar": "\\"}, id="quotes are escaped"),
        pytest.param({"quoting": csv.QUOTE_NONE, "escapechar": "\\"}, id="newlines are escaped"),
    ],
)
@pytest.mark.parametrize("columns", [{"text": "text", "label": "label"}, BY_POSITION], ids=["header", "position"])
def test_tsv_with_a_value_of_several_lines_is_refused_with_its_line(tmp_path, written, columns):
    rows = [("a", 1), ("b", 0), (NOTE_OF_TWO_LINES, 1), ("c", 1)]
    for name, frame in {"text first": rows, "text last": [row[::-1] for row in rows]}.items():
        path = tmp_path / f"{name}.tsv"
        path.write_text("text\tlabel\n")
        pd.DataFrame(frame).to_csv(path, sep="\t", index=False, header=False, mode="a", **written)
        with pytest.raises(UnreadableDataError, match=r"\.tsv: line 4 has .*one record is one line: write jsonl"):
            rows_at(path, columns)


def test_tsv_line_in_a_later_part_of_the_file_is_named_by_its_number_in_the_file(tmp_path):
    path = tmp_path / "d.tsv"
    path.write_text("text\tlabel\n" + "a\t1\n" * 100 + '"b\nc"\t1\n')
    source = Source("file", {}, format_named("tsv"), Wanted({"text": "text", "label": "label"}))
    with pytest.raises(UnreadableDataError, match="line 102 has a value that begins with a quote"):
        list(source.tables(str(path), 1, 2))


VALUES_OF_TSV = st.text(st.characters(codec="utf-8"), min_size=1) | st.sampled_from(
    ['"', '""', "a\nb", '"\n', "\\\n", 'a\t"\nb', '\\"\n', "\\", '"a" b', "c\\\\"]
)


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(VALUES_OF_TSV, VALUES_OF_TSV), min_size=1),
    written=st.sampled_from(
        [
            {"dialect": "excel-tab"},
            {"dialect": "excel-tab", "quoting": csv.QUOTE_ALL},
            {"dialect": "excel-tab", "doublequote": False, "escapechar": "\\"},
            {"dialect": "excel-tab", "quoting": csv.QUOTE_NONE, "escapechar": "\\"},
        ]
    ),
    end=st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=100)
def test_no_record_of_a_tsv_file_becomes_several(tmp_path_factory, rows, written, end):
    """Whatever wrote it: a file with a record of several lines is refused."""
    path = tmp_path_factory.mktemp("written") / "d.tsv"
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator=end, **written).writerows([("text", "label"), *rows])
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")
    try:
        found = rows_at(path)
    except DataError:  # also where the names of the columns have quotes
        return
    assert len(found) <= len(rows)
    assert buffer.getvalue().count("\n") == len(rows) + 1


def test_csv_row_that_ends_in_a_backslash_is_refused(tmp_path):
    """As MySQL writes a newline in a value by default. A quoted value, and a backslash that is escaped, end there."""
    path = tmp_path / "d.csv"
    path.write_text("user,text\n7,a\\\nb,c\n")
    with pytest.raises(UnreadableDataError, match="the row that begins in line 2 has a backslash at its end"):
        rows_at(path, {"text": "text", "user": "user"})
    path.write_text('user,text\n7\\,"a\\"\nb,c\\\\\n')
    assert [row["text"] for row in rows_at(path, {"text": "text", "user": "user"})] == ["a\\", "c\\\\"]


def test_csv_without_header_is_read_by_position(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('"a, b",1\nc,0\n')
    assert rows_at(path, BY_POSITION) == [{"0": "a, b", "1": "1"}, {"0": "c", "1": "0"}]
