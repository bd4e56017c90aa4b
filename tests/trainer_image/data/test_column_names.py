"""A column is found by its name in every source: in objects by a path, and whatever way its name is spelt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorguard.data.errors import DataError
from tensorguard.data.listing import inspect
from tensorguard.data.memory import memory_tables
from tensorguard.data.packed import tables_in
from tensorguard.data.raw_table import Wanted
from tensorguard.data.read import _raw_block
from tests.support.trainer.data_files import records_at

Records = list[dict[str, Any]]


def sources(records: Records, folder: Path) -> Iterator[Any]:
    """The records as a file of each format, and as each kind of data set in memory."""
    names = list(records[0])
    table = pa.Table.from_pylist(records)
    pq.write_table(table, folder / "d.parquet")
    yield folder / "d.parquet"
    (folder / "d.jsonl").write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    yield folder / "d.jsonl"
    if not any(isinstance(value, dict) for record in records for value in record.values()):
        for separator, ending in ((",", "csv"), ("\t", "tsv")):
            rows = [names, *([str(record[name]) for name in names] for record in records)]
            (folder / f"d.{ending}").write_text("".join(separator.join(row) + "\n" for row in rows))
            yield folder / f"d.{ending}"
    yield from (records, pd.DataFrame(records), datasets.Dataset.from_list(records), table)


def found_in(source: Any, columns: dict[str, str]) -> Records:
    """What a job reads of a source, by role."""
    if isinstance(source, Path):
        return records_at(source, columns)
    tables = memory_tables(source, Wanted(columns, where="train_dataset"))
    return [row for table in tables for row in table.select(list(columns)).to_pylist()]


PATIENTS: Records = [
    {"note": {"text": "a", "seen": 1.5}, "patient": {"id": 7, "of": {"ward": "A 1"}}},
    {"note": {"text": "b", "seen": None}, "patient": {"id": None, "of": None}},
    {"note": {"text": None, "seen": None}, "patient": None},
]


@pytest.mark.slow
def test_path_reaches_into_objects_of_every_source(tmp_path: Path) -> None:
    columns = {"text": "note.text", "user": "patient.id", "label": "patient.of.ward"}
    expected = [
        {"text": "a", "user": "7", "label": "a 1"},
        {"text": "b", "user": None, "label": None},
        {"text": None, "user": None, "label": None},
    ]
    for source in sources(PATIENTS, tmp_path):
        assert found_in(source, columns) == expected, source
    [table] = tables_in(_raw_block(pa.Table.from_pylist(PATIENTS), Wanted(columns)))
    assert table.select(list(columns)).to_pylist() == expected


def test_id_that_is_an_object_is_refused_with_the_path_as_the_fix(tmp_path: Path) -> None:
    for source in sources(PATIENTS, tmp_path):
        with pytest.raises(DataError, match="'patient'") as error:
            found_in(source, {"text": "note.text", "user": "patient"})
        assert "a field of an object by its path, such as patient.id" in str(error.value) or "struct" in str(
            error.value
        )


def test_field_that_a_schema_does_not_have_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(PATIENTS), tmp_path / "d.parquet")
    for source in (tmp_path / "d.parquet", datasets.Dataset.from_list(PATIENTS)):
        with pytest.raises(DataError, match=r"no column 'patient\.number'"):
            found_in(source, {"text": "note.text", "user": "patient.number"})


@pytest.mark.parametrize(
    "name",
    ["Gr\u00f6\u00dfe", "Gro\u0308\u00dfe", " Gr\u00f6\u00dfe ", "Gr\u00f6\u00dfe\u00a0", "Gr\u00f6\u200b\u00dfe"],
    ids=ascii,
)
@pytest.mark.parametrize("wanted", ["Gr\u00f6\u00dfe", "Gro\u0308\u00dfe"], ids=ascii)
def test_name_is_found_however_it_is_spelt(tmp_path: Path, name: str, wanted: str) -> None:
    for source in sources([{name: "tall", "id": 7}, {name: "small", "id": 8}], tmp_path):
        found = found_in(source, {"text": wanted, "user": "id"})
        assert found == [{"text": "tall", "user": "7"}, {"text": "small", "user": "8"}], source


def test_names_that_differ_in_letters_are_apart(tmp_path: Path) -> None:
    for source in sources([{"Text": "a", "id": 7}], tmp_path):
        with pytest.raises(DataError, match="no column 'text'; did you mean 'Text'"):
            found_in(source, {"text": "text", "user": "id"})


def test_null_values_of_a_job_are_no_value_in_files_without_types(make_spec: Any, tmp_path: Path) -> None:
    """A database writes NULL: as the id of all records without one, it would be one user."""
    unit = {"kind": "User", "column": "id"}
    plain, declared = (make_spec({"text": "text"}, unit=unit, **more) for more in ({}, {"nullValues": ["NULL", "NA"]}))
    for source in sources([{"text": "a", "id": each} for each in ("7", "NULL", "NA", "\\N", "", " null")], tmp_path):
        typed = not isinstance(source, Path) or source.suffix in (".parquet", ".jsonl")
        written = ["null", "na", "\\n", None, "null"]
        assert ids_in(source, plain) == ["7", *(written if typed else ["null", "na", None, None, "null"])], source
        assert ids_in(source, declared) == ["7", *(written if typed else [None, None, None, None, "null"])], source


def ids_in(source: Any, spec: Any) -> list[str | None]:
    """The ids that a job reads of a source."""
    wanted = Wanted.of(spec)
    if isinstance(source, Path):
        found, fragments = inspect(str(source), wanted, None, "file", {})
        tables = [table for fragment in fragments for table in found.tables(**fragment)]
    else:
        tables = list(memory_tables(source, wanted))
    return [value for table in tables for value in table.column("user").to_pylist()]
