"""A pod that prepares its own shard makes the same file as a preparation for all ranks."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.keys import dataset_digest
from tensorguard.data.listing import tables_at
from tensorguard.data.partition import merge, split_by_unit
from tensorguard.data.pod_shard import prepare_pod_evaluation, prepare_pod_shard
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard
from tensorguard.data.tokenise import Tokeniser
from tests.support.trainer.tokenising import tokeniser

KEY = b"0123456789abcdef"
WORKERS = 3
TEXTS = ["a b", "c d e", "good morning", "how are you", "fine thanks", "one two three", "f", "hello to you"]
USER = {"kind": "User", "column": "u", "maxExamplesPerUnit": 2}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Sixty usable records of eleven users, and one unusable record."""
    return [{"t": f"{TEXTS[i % 8]} {TEXTS[i // 8]}", "u": i % 11} for i in range(60)] + [{"t": None, "u": 3}]


@pytest.mark.parametrize("unit", [{}, USER])
def test_each_rank_makes_the_same_shard_as_a_preparation_for_all(
    make_spec: Any, make_tokenizer: Any, rows: list[dict[str, Any]], unit: dict[str, Any], tmp_path: Path
) -> None:
    uri = write_rows(tmp_path / "data.jsonl", rows)
    spec = make_spec({"text": "t"}, unit=unit, uri=uri, unusable="Skip")
    tokenise = tokeniser(make_tokenizer(), Recipe.from_spec(spec))
    for_all = [
        split_by_unit(table, tokenise=tokenise, key=KEY, workers=WORKERS)
        for table in tables_at(uri, Wanted.of(spec), format=None, storage=None)
    ]
    units = 0
    for rank in range(WORKERS):
        made = prepare_pod_shard(spec, tokenise, rank=rank, workers=WORKERS, key=KEY, directory=tmp_path / "work")
        batch = merge([part.tables[rank] for part in for_all], spec.dataset.unit.max_examples_per_unit)
        mapped = Shard.open(made.shard)
        assert mapped._batch.equals(batch)
        assert (made.digest, made.empty) == (dataset_digest(KEY, [part.total for part in for_all]), False)
        units += len(mapped)
    assert units == (11 if unit else 60)
    assert stat.S_IMODE((tmp_path / "work").stat().st_mode) == 0o700


def test_records_of_other_ranks_are_not_tokenised(
    make_spec: Any, make_tokenizer: Any, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    seen: list[str] = []

    def counting(values: Any) -> Any:
        seen.extend(values["text"])
        return inner(values)

    spec = make_spec({"text": "t"}, uri=write_rows(tmp_path / "data.jsonl", rows), unusable="Skip")
    inner = tokeniser(make_tokenizer(), Recipe.from_spec(spec))
    tokenise = Tokeniser(counting, inner.target)
    each = []
    for rank in range(WORKERS):
        prepare_pod_shard(spec, tokenise, rank=rank, workers=WORKERS, key=KEY, directory=tmp_path)
        each.append(len(seen) - sum(each))
    assert sum(each) == len(rows) - 1, "all but the one without a text"
    assert max(each) < len(rows)


def test_rank_without_a_unit_has_an_empty_shard(make_spec: Any, make_tokenizer: Any, tmp_path: Path) -> None:
    spec = make_spec({"text": "t"}, uri=write_rows(tmp_path / "data.jsonl", [{"t": "a b"}]))
    found = [
        prepare_pod_shard(
            spec, tokeniser(make_tokenizer(), Recipe.from_spec(spec)), rank=rank, workers=2, key=KEY, directory=tmp_path
        )
        for rank in range(2)
    ]
    assert sorted(made.empty for made in found) == [False, True]
    assert sorted(len(Shard.open(made.shard)) for made in found) == [0, 1]


def test_evaluation_set_is_complete_and_ordered_on_each_rank(
    make_spec: Any, make_tokenizer: Any, tmp_path: Path
) -> None:
    uri = write_rows(tmp_path / "public.jsonl", [{"t": "c d e"}, {"t": None}, {"t": "a"}])
    spec = make_spec({"text": "t"}, unusable="Skip")
    assert (
        prepare_pod_evaluation(spec, tokeniser(make_tokenizer(), Recipe.from_spec(spec)), rank=0, directory=tmp_path)
        is None
    )
    asked = (
        type(spec)
        .model_fields["evaluation"]
        .annotation.__args__[0]
        .model_validate({"uri": uri, "visibility": "Public"})
    )
    spec = spec.model_copy(update={"evaluation": asked})
    paths = [
        prepare_pod_evaluation(spec, tokeniser(make_tokenizer(), Recipe.from_spec(spec)), rank=rank, directory=tmp_path)
        for rank in range(2)
    ]
    assert len(set(paths)) == 2
    for path in paths:
        assert path is not None
        shard = Shard.open(path)
        assert [len(shard.tokens(record)) for record in range(2)] == [4, 2]  # with the end token
    write_rows(tmp_path / "public.jsonl", [{"t": None}])
    with pytest.raises(DataError, match=r"spec\.evaluation: no record is usable"):
        prepare_pod_evaluation(spec, tokeniser(make_tokenizer(), Recipe.from_spec(spec)), rank=0, directory=tmp_path)


def test_published_refusal_has_kinds_and_files_and_its_cause_the_numbers(
    make_spec: Any, make_tokenizer: Any, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    """How many records cannot be used is private: it goes to the private log of the worker, and not to the status."""
    spec = make_spec({"text": "t"}, unit=USER, uri=write_rows(tmp_path / "data.jsonl", [*rows, {"t": "a"}]))
    tokenise = tokeniser(make_tokenizer(), Recipe.from_spec(spec))
    with pytest.raises(DataError) as caught:
        prepare_pod_shard(spec, tokenise, rank=0, workers=1, key=KEY, directory=tmp_path / "work")
    published, private = str(caught.value), str(caught.value.__cause__)
    path = tmp_path / "data.jsonl"
    assert f"some records of {path} have no id of a user; some records of {path} have no text: " in published
    assert f"1 record has no id of a user (the first: {path}, line 62); 1 record has no text" in private
    assert "62" not in published.replace(str(tmp_path), "") and f"{path}, line 61" in private


def test_unreadable_file_is_reported_without_its_content(make_spec: Any, make_tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_bytes(b"Jane Doe has diabetes")
    spec = make_spec({"text": "t"}, uri=str(tmp_path / "data.parquet"))
    with pytest.raises(UnreadableDataError) as caught:
        prepare_pod_shard(
            spec, tokeniser(make_tokenizer(), Recipe.from_spec(spec)), rank=0, workers=1, key=KEY, directory=tmp_path
        )
    assert "Jane" not in str(caught.value)
    assert "spec.dataset.uri" in str(caught.value)
