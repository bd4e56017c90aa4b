"""What would make one user several units, or one record several, is refused before anything is charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorguard.data.errors import DataError
from tensorguard.data.memory import memory_tables
from tensorguard.data.pod_shard import prepare_pod_shard
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard
from tests.support.trainer.data_files import records_at
from tests.support.trainer.tokenising import tokeniser

COLUMNS = {"text": "text", "user": "id"}


def refusal(path: Path, columns: dict[str, str] = COLUMNS) -> str:
    with pytest.raises(DataError) as error:
        records_at(path, columns)
    return str(error.value)


@pytest.mark.parametrize("kind", [pa.struct({"number": pa.int64()}), pa.date32(), pa.float32()], ids=str)
def test_types_of_each_file_are_checked(tmp_path: Path, kind: pa.DataType) -> None:
    """A second file whose ids have another type: each of its records would be a user."""
    values = [{"number": 7}] * 2 if pa.types.is_struct(kind) else [7, 7]
    pq.write_table(pa.table({"text": ["a", "b"], "id": [7, 7]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"text": ["c", "d"], "id": pa.array(values, kind)}), tmp_path / "2.parquet")
    message = refusal(tmp_path)
    assert "column 'id' (user)" in message and "2.parquet" in message and "1.parquet" not in message


@pytest.mark.parametrize("path", ["u.ID", "who.id", "u.id.x"])
def test_path_that_leads_nowhere_is_refused(tmp_path: Path, path: str) -> None:
    """Otherwise, with unit.missing: OwnUnit, each record would be a unit."""
    rows = [{"text": text, "u": {"id": 7}, "who": [{"id": 7}]} for text in "ab"]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"text": "text", "user": path}
    message = refusal(tmp_path / "d.jsonl", columns)
    with pytest.raises(DataError) as error:
        list(memory_tables(rows, Wanted(columns)))
    for each in (message, str(error.value)):
        assert f"has no column '{path}'" in each if path == "u.ID" else f"'{path}' holds a list" in each


@pytest.mark.parametrize("header", ["id,text", "\ufeffid,text", " id,text", "ID,Text", '"id","text"'], ids=ascii)
def test_second_header_is_refused(tmp_path: Path, header: str) -> None:
    """`cat a.csv b.csv`, where the columns of b are in another order: each note of b would be a user."""
    (tmp_path / "d.csv").write_text(f"text,id\na,7\n{header}\n7,b\n7,c\n")
    assert "d.csv, line 3: " in refusal(tmp_path)


@pytest.mark.parametrize(
    ("row", "cause"), [("a, or b,7", "quote a value"), ("b", "quote a value"), ("b,7,", "separator at the end of rows")]
)
def test_row_with_another_number_of_values_is_refused(tmp_path: Path, row: str, cause: str) -> None:
    (tmp_path / "d.csv").write_text(f"text,id\na,7\n\n{row}\n")
    message = refusal(tmp_path)
    assert "d.csv, line 4: " in message and cause in message and "or b" not in message


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl", "d.parquet", "frame", "frame of a join"])
def test_column_that_occurs_twice_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "d.csv":
        path.write_text("text,id,id\na,7,8\n")
    elif name == "d.jsonl":
        path.write_text('{"text": "a", "id": 7, "id": 8}\n')
    elif name == "d.parquet":
        pq.write_table(pa.table([["a"], [7], [8]], names=["text", "id", "id"]), path)
    if name.startswith("d."):
        assert "d." in refusal(path)
        return
    frame = pd.DataFrame({"text": ["a"], "id": [7]})
    frame = pd.concat([frame, frame[["id"]]], axis=1)
    frame.columns = ["text", "id", "id" if name == "frame" else " id"]
    with pytest.raises(DataError, match="several columns 'id'"):
        list(memory_tables(frame, Wanted(COLUMNS)))


def test_transform_of_hugging_face_is_refused() -> None:
    """A transform may redact texts, and map accounts to persons."""
    found = datasets.Dataset.from_dict({"text": ["a"], "id": [7]})
    for transformed in (found.with_transform(lambda batch: batch), found.with_format("numpy")):
        if transformed.format["type"] == "custom":
            with pytest.raises(DataError, match=r"apply it with map\(\) first"):
                list(memory_tables(transformed, Wanted(COLUMNS)))
        else:
            [table] = memory_tables(transformed, Wanted(COLUMNS))
            assert table.column("user").to_pylist() == ["7"]


@pytest.mark.parametrize("missing", [None, "", "  ", "\ufffd", float("nan")], ids=repr)
def test_record_without_an_id_ends_the_job_unless_it_is_a_unit(
    make_spec: Any, make_tokenizer: Any, tmp_path: Path, missing: Any
) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"text": t, "id": i}) + "\n" for t, i in zip("abcd", [7, 7, missing, missing])))

    def units(**unit: str) -> list[int]:
        unit = {"kind": "User", "column": "id", **unit}
        spec = make_spec({"text": "text"}, unit=unit, uri=str(path), unusable="Skip")
        tokenise = tokeniser(make_tokenizer(), Recipe.from_spec(spec))
        made = prepare_pod_shard(spec, tokenise, rank=0, workers=1, key=b"k" * 16, directory=tmp_path / "work")
        shard = Shard.open(made.shard)
        return sorted(len(shard.records(unit)) for unit in range(len(shard)))

    with pytest.raises(DataError, match=r"d\.jsonl have no id of a user: .*unit\.missing to OwnUnit") as error:
        units()
    assert "2 records have no id of a user (the first: " in str(error.value.__cause__)
    assert ", line 3)" in str(error.value.__cause__), "the numbers are in the private log alone"
    assert units(missing="OwnUnit") == [1, 1, 2]


@pytest.mark.parametrize("role", ["text", "label", "tokens", "tags", "messages", "user"])
def test_value_that_python_cannot_convert_makes_its_record_unusable_alone(role: str) -> None:
    nested: Any = "a"
    for _ in range(5000):
        nested = [nested]
    values = [nested, "\ud83d" if role == "label" else 10**5000]
    for value in values:
        source = [{"c": value}, {"c": '["a"]' if role in ("tokens", "tags") else "a"}]
        if role == "user":
            with pytest.raises(DataError, match="'c' holds an "):
                list(memory_tables(source, Wanted({role: "c"})))
            continue
        [table] = memory_tables(source, Wanted({role: "c"}))
        assert table.column("fault")[0].as_py() is not None
        assert role == "messages" or table.column("fault")[1].as_py() is None
