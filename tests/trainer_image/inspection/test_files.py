"""Which columns of a file are shown, its encoding, and which files hold the same records."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensafe_api.resources.job import Spec
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.inspection.collect import Collector, small
from tensorguard.inspection.files import describe_files
from tensorguard.inspection.inspection import Column, File
from tensorguard.inspection.reading import read_files
from tests.support.trainer.tokenising import tokeniser

ROWS = [{"t": f"dog {i}", "l": i % 2} for i in range(4)]
USED = (Column("t", None, "text"), Column("l", None, "label"))


@pytest.fixture
def spec(make_spec: Any) -> Spec:
    found: Spec = make_spec({"text": "t", "label": "l"}, labels=2)
    return found


def described(spec: Spec, tokenizer: Any, uri: Path | str, show_records: bool = False) -> tuple[File, ...]:
    tokenise = tokeniser(tokenizer, Recipe.from_spec(spec))
    collector = Collector(spec, tokenise, None)
    reading = read_files(str(uri), Wanted.of(spec), None, None)
    for table, _ in reading.tables:
        for piece in small(table, tokenise):
            collector.add(piece)
    assert reading.source is not None
    return describe_files(reading.source, reading.sizes, collector.files, show_records)


def lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def table(rows: Sequence[dict[str, Any]], separator: str = ",") -> str:
    return "".join(separator.join(map(str, row)) + "\n" for row in [rows[0], *(row.values() for row in rows)])


def test_keys_of_jsonl_are_shown_only_on_request(spec: Spec, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(lines([{**row, f"Ann Lee {i}": 1, "ward": 2} for i, row in enumerate(ROWS)]))
    [hidden] = described(spec, tokenizer, path)
    assert (hidden.columns, hidden.other_columns) == (USED, 5)
    [shown] = described(spec, tokenizer, path, show_records=True)
    assert [each.name for each in shown.columns] == [
        "t",
        "l",
        "Ann Lee 0",
        "ward",
        *(f"Ann Lee {i}" for i in (1, 2, 3)),
    ]


def test_header_of_csv_and_schema_of_parquet_are_shown(spec: Spec, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text(table([{**row, "ward": 3} for row in ROWS]))
    [file] = described(spec, tokenizer, path)
    assert file.columns == (*USED, Column("ward", None, None))
    assert (file.format, file.records, file.bytes, file.encoding) == ("csv", 4, path.stat().st_size, "UTF-8")
    path = tmp_path / "notes.parquet"
    pq.write_table(pa.table({"t": ["dog", "cat"], "l": [0, 1], "who": [{"Ann Lee": 1}, {"Ann Lee": 2}]}), path)
    [file] = described(spec, tokenizer, path)
    assert file.columns == (
        Column("t", "string", "text"),
        Column("l", "int64", "label"),
        Column("who", "struct", None),  # the names of fields may be values
    )
    assert file.encoding is None


def test_byte_order_mark_is_shown(spec: Spec, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.csv.gz"
    path.write_bytes(gzip.compress(table(ROWS).encode("utf-8-sig")))
    [file] = described(spec, tokenizer, path)
    assert (file.encoding, file.records) == ("UTF-8 with a byte order mark", 4)


def test_files_with_the_same_records_are_found(spec: Spec, tokenizer: Any, tmp_path: Path) -> None:
    """In another order, compressed, or with other keys that the job does not read."""
    (tmp_path / "a.jsonl").write_text(lines(ROWS))
    (tmp_path / "b.jsonl").write_text(lines(ROWS[1:] + ROWS[:1]))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines([{**row, "x": 1} for row in ROWS]).encode()))
    (tmp_path / "d.jsonl").write_text(lines([*ROWS[:3], ROWS[0]]))
    found = {Path(file.path).name: file.same_records_as for file in described(spec, tokenizer, tmp_path)}
    first = str(tmp_path / "a.jsonl")
    assert found == {
        "a.jsonl": None,
        "b.jsonl": first,
        "c.jsonl.gz": first,
        "d.jsonl": None,
    }


def test_columns_in_the_names_of_folders_are_shown(make_spec: Any, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "l=1").mkdir()
    (tmp_path / "l=1" / "notes.jsonl").write_text(lines([{"t": "dog"}]))
    [file] = described(make_spec({"text": "t", "label": "l"}, labels=2), tokenizer, tmp_path)
    assert file.columns == USED
