"""docs/extending/data-format.md is followed step by step: its code is run, and its files become shards."""

from __future__ import annotations

import gzip
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from tensorguard.data import formats
from tensorguard.data.errors import DataError
from tensorguard.data.formats import DataFormat, format_of
from tensorguard.data.listing import inspect
from tensorguard.data.pod_shard import prepare_pod_shard
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard
from tests.support.trainer.tokenising import tokeniser

PAGE = Path(__file__).parents[3] / "docs" / "extending" / "data-format.md"
MODULE = "tensorguard.data.formats.logfmt"
RECORDS = b'text="a b" label=1\ntext="c" label=0\n\ntext="d e f" label=1\n'


@pytest.fixture
def logfmt(monkeypatch: pytest.MonkeyPatch) -> Iterator[DataFormat]:
    """Steps 1 and 2 of the page: the module of its code block, and its class in `FORMATS`."""
    section = PAGE.read_text()
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    made: DataFormat = module.Logfmt()
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, made))
    yield made


def test_class_of_the_page_is_a_format(logfmt: DataFormat) -> None:
    protocol = {name for name in vars(DataFormat) if not name.startswith("_")}
    assert protocol == {"name", "endings", "splittable", "compressible", "columns", "rows", "place"}
    assert all(hasattr(logfmt, name) for name in protocol)
    assert format_of("s3://bucket/notes.logfmt.zst") is logfmt
    assert pickle.loads(pickle.dumps(logfmt)).name == "logfmt"


@pytest.mark.usefixtures("logfmt")
def test_format_of_the_page_can_be_tried_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 5 of the page."""
    section = PAGE.read_text()
    [code] = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    (tmp_path / "notes.logfmt").write_bytes(RECORDS)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})
    assert "{'text': 'a b', 'label': '1', 'fault': None, " in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_files_of_the_format_become_the_shards_of_a_job(
    logfmt: DataFormat, make_spec: Any, make_tokenizer: Any, tmp_path: Path, ending: str
) -> None:
    archive = {"": bytes, ".gz": gzip.compress, ".zst": lambda content: pa.compress(content, "zstd", asbytes=True)}
    path = tmp_path / f"notes.logfmt{ending}"
    path.write_bytes(archive[ending](RECORDS))
    spec = make_spec({"text": "text", "label": "label"}, labels=2, uri=str(path))
    tokenizer, found = make_tokenizer(), []
    for rank in range(2):
        tokenise = tokeniser(tokenizer, Recipe.from_spec(spec))
        made = prepare_pod_shard(spec, tokenise, rank=rank, workers=2, key=b"k" * 16, directory=tmp_path / "work")
        shard = Shard.open(made.shard)
        records = [record for unit in range(len(shard)) for record in shard.records(unit)]
        found += [(tokenizer.decode(shard.tokens(record)), shard.label(record)) for record in records]
    assert sorted(found) == [("a b", 1), ("c", 0), ("d e f", 1)]


def test_missing_column_names_the_nearest(logfmt: DataFormat, tmp_path: Path) -> None:
    (tmp_path / "notes.logfmt").write_bytes(RECORDS)
    with pytest.raises(DataError, match="has no column 'txt'; did you mean 'text'"):
        inspect(str(tmp_path), Wanted({"text": "txt"}), None, "file", {})


def test_large_file_is_split_between_lines(logfmt: DataFormat, tmp_path: Path) -> None:
    (tmp_path / "notes.logfmt").write_bytes(RECORDS * 100)
    source, _ = inspect(str(tmp_path), Wanted({"text": "text"}), None, "file", {})
    path = str(tmp_path / "notes.logfmt")
    assert sum(len(table) for part in range(7) for table in source.tables(path, part, 7)) == 300


def test_line_that_is_no_record_is_refused_with_its_number(logfmt: DataFormat, tmp_path: Path) -> None:
    (tmp_path / "notes.logfmt").write_bytes(RECORDS + b"this line is no record\n")
    source, [fragment] = inspect(str(tmp_path), Wanted({"text": "text"}), None, "file", {})
    with pytest.raises(DataError, match=r"notes\.logfmt, line 5: it is not one logfmt record"):
        list(source.tables(**fragment))
