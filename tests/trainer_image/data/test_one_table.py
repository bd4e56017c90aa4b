# ruff: noqa: E501 - a case is a line
"""One table in all formats gives the same raw table, value by value, or the column is refused by its name.

A case is a column: values, and the types and texts that usual writers give them. It is written as files of each format,
and held in memory as each kind of data set. What every source makes of it is compared with one expectation.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
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

TEXTS = ["good morning", "Größe: 12 µg", 'she said "no",\nthen left', "日本語 👩🏽‍⚕️"]
ROWS = len(TEXTS)
UUIDS = [uuid.UUID(int=(0xA << 120) + i) for i in range(ROWS)]
MESSAGES = [[{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}] for text in TEXTS]
TALKS = [json.dumps(m, ensure_ascii=False) for m in MESSAGES]
DAYS = pa.array([19000 + i for i in range(ROWS)], pa.int32()).cast(pa.date32())


@dataclass(frozen=True)
class Case:
    """One column in one type. `wanted`: what each record has of it; None: the column is refused."""

    role: str
    values: Any
    wanted: Sequence[str | None] | None
    names: tuple[str, ...] = ()
    text: Callable[[Any], str] = str
    """How a value is written into a csv or tsv file."""
    jsonl: bool = True
    """Whether JSON has the type: otherwise only the typed sources are tried."""
    text_files: bool = True
    """Whether a text file can hold the same refusal: a date in a csv file is a text, and JSON has one type of float."""
    faults: Sequence[str | None] = field(default_factory=lambda: [None] * ROWS)

    @property
    def arrow(self) -> pa.Array:
        return self.values if isinstance(self.values, pa.Array | pa.ExtensionArray) else pa.array(self.values)

    @property
    def python(self) -> list[Any]:
        if isinstance(self.values, pa.Array) and self.values.type in (pa.float16(), pa.float32()):
            return list(self.values.to_numpy())  # Python's float has 64 bits
        return self.arrow.to_pylist() if isinstance(self.values, pa.Array | pa.ExtensionArray) else list(self.values)


def numbers(kind: pa.DataType) -> pa.Array:
    values = range(1, ROWS + 1)
    return pa.array(map(Decimal, values), kind) if pa.types.is_decimal(kind) else pa.array(values).cast(kind)


DIGITS = [str(number) for number in range(1, ROWS + 1)]
CASES = {
    # texts
    "text of pyarrow": Case("text", pa.array(TEXTS, pa.string()), TEXTS),
    "text of polars": Case("text", pa.array(TEXTS, pa.large_string()), TEXTS),
    "text of newer polars": Case("text", pa.array(TEXTS, pa.string_view()), TEXTS),
    "category of pandas": Case("text", pa.array(TEXTS).dictionary_encode(), TEXTS),
    "text of Spark without annotation": Case("text", [t.encode() for t in TEXTS], TEXTS, text=bytes.decode, jsonl=False),
    "numbers in place of text": Case("text", numbers(pa.int64()), None, text_files=False),
    "times in place of text": Case("text", DAYS.cast(pa.timestamp("us")), None, jsonl=False, text_files=False),
    "lists in place of text": Case("text", [[t] for t in TEXTS], None, text_files=False),
    # classes
    "classes by number": Case("label", numbers(pa.int64()), DIGITS),
    "classes of 8 bits": Case("label", numbers(pa.uint8()), DIGITS),
    "classes beside a missing value": Case("label", numbers(pa.float64()), DIGITS),
    "classes of 32-bit floats": Case("label", numbers(pa.float32()), DIGITS),
    "classes of Spark": Case("label", numbers(pa.decimal128(10, 0)), DIGITS, jsonl=False),
    "classes as text": Case("label", DIGITS, DIGITS),
    "classes with a point": Case("label", [f"{d}.0" for d in DIGITS], DIGITS),
    "named classes": Case("label", ["Pos", " neg ", "POS", "neg"], ["pos", "neg", "pos", "neg"]),
    "booleans": Case("label", [True, False, True, True], ["true", "false", "true", "true"]),
    "categories": Case("label", pa.array(["a", "B", "a", "a"]).dictionary_encode(), ["a", "b", "a", "a"]),
    "times in place of classes": Case("label", DAYS, None, jsonl=False, text_files=False),
    # ids
    "ids of 64 bits": Case("user", numbers(pa.int64()), DIGITS),
    "ids of 32 bits": Case("user", numbers(pa.uint32()), DIGITS),
    "long ids": Case("user", [2**53 + i for i in range(ROWS)], [str(2**53 + i) for i in range(ROWS)]),
    "ids of float64": Case("user", numbers(pa.float64()), DIGITS),
    "ids of decimal": Case("user", numbers(pa.decimal128(20, 2)), DIGITS, jsonl=False),
    "ids as text": Case("user", DIGITS, DIGITS),
    "ids with zeros": Case("user", [f"00{d}" for d in DIGITS], DIGITS),
    "ids with letters": Case("user", ["P-7", "p‑8", " P-9", "p - 7"], ["p-7", "p-8", "p-9", "p - 7"]),
    "ids in four spellings": Case("user", ["Ann Lee", " ann  lee", "ANN\u00a0LEE", "Ann\u200b Lee"], ["ann lee"] * ROWS),
    "UUIDs in four spellings": Case(
        "user",
        [str(UUIDS[0]), str(UUIDS[0]).upper(), UUIDS[0].hex, f"{{{UUIDS[0]}}}"],
        [str(UUIDS[0].int)] * ROWS,
    ),
    "hexadecimal ids": Case("user", ["10e4000", "2f", "9e999", "0xa1"], ["10e4000", "2f", "9e999", "0xa1"]),
    "ids of bytes": Case("user", [b"p1", b"p2", b"p3", b"p4"], ["p1", "p2", "p3", "p4"], text=bytes.decode, jsonl=False),
    "boolean ids": Case("user", [True, False, True, True], ["true", "false", "true", "true"]),
    "UUIDs": Case("user", [str(u).upper() for u in UUIDS], [str(u.int) for u in UUIDS]),
    "UUIDs of Arrow": Case("user", pa.array([u.bytes for u in UUIDS], pa.uuid()), [str(u.int) for u in UUIDS], jsonl=False),
    "ids of a category": Case("user", pa.array(["a", "b", "a", "A"]).dictionary_encode(), ["a", "b", "a", "a"]),
    "ids of 32-bit floats": Case("user", numbers(pa.float32()), None, jsonl=False, text_files=False),
    "ids of 16-bit floats": Case("user", pa.array(np.arange(ROWS, dtype=np.float16)), None, jsonl=False, text_files=False),
    "ids of dates": Case("user", DAYS, None, jsonl=False, text_files=False),
    "ids of times": Case("user", DAYS.cast(pa.timestamp("ns")), None, jsonl=False, text_files=False),
    "ids of durations": Case("user", numbers(pa.duration("s")), None, jsonl=False, text_files=False),
    "ids with fractions": Case("user", [0.5, 1.5, 2.5, 3.5], None, text_files=False),
    "ids of objects": Case("user", [{"id": 1, "visit": i} for i in range(ROWS)], None, text=json.dumps),
    "ids of lists": Case("user", [[1], [2], [3], [4]], None, text=json.dumps),
    "ids of big-endian bytes": Case("user", [i.to_bytes(8, "big") for i in range(1, 5)], None, jsonl=False, text_files=False),
    "rounded ids": Case("user", ["1.23457E+11", "1.23457E+11", "1.23458E+11", "1.2E+11"], None),
    # lists
    "words": Case("tokens", [["a", "b"], ["c"], ["d", "é"], ["f"]], ['["a", "b"]', '["c"]', '["d", "é"]', '["f"]'], text=json.dumps),
    "words of a category": Case(
        "tokens", pa.array([["a", "b"], ["c"], ["a"], ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        ['["a", "b"]', '["c"]', '["a"]', '["b"]'], text=json.dumps,
    ),
    "tags by number": Case("tags", [[0, 1], [2], [0], [1]], ['["0", "1"]', '["2"]', '["0"]', '["1"]'], text=json.dumps),
    "tags by name": Case("tags", [["O", "B-x"], ["O"], ["I-x"], ["O"]], ['["o", "b-x"]', '["o"]', '["i-x"]', '["o"]'], text=json.dumps),
    "messages": Case("messages", MESSAGES, TALKS, text=lambda m: json.dumps(m, ensure_ascii=False)),
    "messages with roles of a category": Case(
        "messages",
        pa.array(MESSAGES, pa.list_(pa.struct({"role": pa.dictionary(pa.uint32(), pa.string()), "content": pa.large_string()}))),
        TALKS, text=lambda m: json.dumps(m, ensure_ascii=False),
    ),
}  # fmt: skip


def write_jsonl(case: Case, folder: Path) -> Iterator[Path]:
    lines = [json.dumps({"value": value, "row": i}, default=float) + "\n" for i, value in enumerate(case.python)]
    plain = folder / "table.jsonl"
    plain.write_text("".join(lines))
    yield plain
    packed = folder / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(lines).encode()))
    yield packed
    marked = folder / "windows.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + "".join(lines).replace("\n", "\r\n").encode())
    yield marked


def write_texts(case: Case, folder: Path) -> Iterator[Path]:
    texts = [case.text(value) for value in case.python]
    table = io.StringIO()
    csv.writer(table).writerows([["row", "value"], *enumerate(texts)])
    plain = folder / "table.csv"
    plain.write_text(table.getvalue(), newline="")
    yield plain
    excel = folder / "excel.csv"
    excel.write_text(table.getvalue(), encoding="utf-8-sig", newline="")
    yield excel
    if not any(character in text for text in texts for character in '\t\n"'):
        tabs = folder / "table.tsv"
        tabs.write_text("".join(f"{a}\t{b}\n" for a, b in [("row", "value"), *enumerate(texts)]))
        yield tabs


def write_parquet(case: Case, folder: Path) -> Iterator[Path]:
    table = pa.table({"row": range(ROWS), "value": case.arrow})
    for name, options in {
        "one": {},
        "groups": {"row_group_size": 1},
        "old": {"use_dictionary": False, "version": "1.0"},
    }.items():
        path = folder / f"{name}.parquet"
        pq.write_table(table, path, **options)
        yield path


def in_memory(case: Case) -> Iterator[Any]:
    table = pa.table({"value": case.arrow})
    yield table
    yield Torch(case.python)
    with suppress(ValueError, pa.ArrowNotImplementedError):  # a type that `datasets` does not know
        yield datasets.Dataset(table)
    yield [{"value": value} for value in case.python]
    yield pd.DataFrame({"value": pd.Series(case.python, dtype=object)})
    if not pa.types.is_float16(case.arrow.type):
        yield pd.DataFrame({"value": pd.Series(case.arrow, dtype=pd.ArrowDtype(case.arrow.type))})
    if not isinstance(case.arrow.type, pa.BaseExtensionType) and not pa.types.is_nested(case.arrow.type):
        yield table.to_pandas()


class Torch:
    """A torch data set: it has a length and items."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"value": self.values[i]}


def found_in_block(case: Case, wanted: Wanted) -> tuple[list[Any], list[Any]]:
    """What a task of Ray makes of a block of a Ray data set."""
    [table] = tables_in(_raw_block(pa.table({"value": case.arrow}), wanted))
    return table.column(case.role).to_pylist(), table.column("fault").to_pylist()


def found_in_file(path: Path, wanted: Wanted) -> tuple[list[Any], list[Any]]:
    source, fragments = inspect(str(path), wanted, None, "file", {})
    table = pa.concat_tables(table for fragment in fragments for table in source.tables(**fragment))
    [role] = wanted.columns
    return table.column(role).to_pylist(), table.column("fault").to_pylist()


def found_in_memory(source: Any, wanted: Wanted) -> tuple[list[Any], list[Any]]:
    table = pa.concat_tables(memory_tables(source, wanted))
    [role] = wanted.columns
    return table.column(role).to_pylist(), table.column("fault").to_pylist()


def check(case: Case, name: str, find: Callable[[], tuple[list[Any], list[Any]]]) -> None:
    if case.wanted is not None:
        assert find() == (list(case.wanted), list(case.faults)), name
        return
    try:
        found, faults = find()
    except DataError as error:
        assert "'value'" in str(error), name
    else:
        assert found == [None] * ROWS and None not in faults, f"{name}: trained as {found}"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_source_makes_the_same_of_a_column(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    wanted = Wanted({case.role: "value"})
    for path in write_parquet(case, tmp_path):
        check(case, path.name, lambda path=path: found_in_file(path, wanted))
    for source in in_memory(case):
        check(case, type(source).__name__, lambda source=source: found_in_memory(source, wanted))
    check(case, "Ray", lambda: found_in_block(case, wanted))
    if case.jsonl:
        for path in write_jsonl(case, tmp_path):
            check(case, path.name, lambda path=path: found_in_file(path, wanted))
    if case.text_files:
        for path in write_texts(case, tmp_path):
            check(case, path.name, lambda path=path: found_in_file(path, wanted))
