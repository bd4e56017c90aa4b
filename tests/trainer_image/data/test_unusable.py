"""Records that cannot be used: they end a job with their kind and place, or are left out, and none is lost silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorguard.data.errors import DataError
from tensorguard.data.pod_shard import prepare_pod_evaluation, prepare_pod_shard
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard
from tensorguard.data.unusable import Tally, Unusable, refused_kinds
from tests.support.trainer.tokenising import tokeniser

COLUMNS = {"text": "text", "label": "label"}
FOUND = st.tuples(st.sampled_from(Unusable), st.sampled_from(["a", "b"]), st.integers(0, 99))


def tally_of(found: list[tuple[Unusable, str, int]]) -> Tally:
    tally = Tally()
    for each in found:
        tally.add(*each)
    return tally


@given(st.lists(FOUND), st.integers(0, 9), st.randoms())
def test_tally_is_the_same_however_a_data_set_is_divided(
    found: list[tuple[Unusable, str, int]], at: int, random: Any
) -> None:
    shuffled = random.sample(found, len(found))
    divided = tally_of(shuffled[:at])
    divided.merge(Tally.from_json(tally_of(shuffled[at:]).to_json()))
    assert divided == tally_of(found)
    for kind, (count, file, first) in divided.by_kind().items():
        assert count == sum(each is kind for each, _, _ in found)
        assert (file, first) == min((file, place) for each, file, place in found if each is kind)


def message(tally: Tally, *, publish_numbers: bool, refused: set[Unusable] | None = None) -> tuple[str, str]:
    """The message of the error, and that of its cause."""
    with pytest.raises(DataError) as error:
        tally.check(
            refused=set(Unusable) if refused is None else refused,
            where="spec.dataset",
            place=lambda file, at: f"{file}, line {at}",
            publish_numbers=publish_numbers,
        )
    return str(error.value), str(error.value.__cause__)


def test_message_of_a_local_job_has_numbers_and_that_of_a_pod_has_none() -> None:
    tally = tally_of([(Unusable.NO_TEXT, "d.csv", 7), (Unusable.NO_TEXT, "d.csv", 4), (Unusable.NO_ID, "e.csv", 8)])
    public, cause = message(tally, publish_numbers=False)
    assert cause == message(tally, publish_numbers=True)[0]
    assert cause.startswith(
        "spec.dataset: 1 record has no id of a user (the first: e.csv, line 8); 2 records have no text (the first: "
        "d.csv, line 4): correct the data, or "
    )
    assert public.startswith(
        "spec.dataset: some records of e.csv have no id of a user; some records of d.csv have no text: correct the data"
    )
    assert not any(character.isdigit() for character in public)


def test_fix_is_that_of_the_kinds() -> None:
    skip, own_unit = "spec.dataset.unusable to Skip", "spec.dataset.unit.missing to OwnUnit"
    for kinds, fixes in (
        ([Unusable.NO_ID], [own_unit]),
        ([Unusable.NO_LABEL], [skip]),
        ([Unusable.NO_LABEL, Unusable.NO_ID], [skip, own_unit]),
    ):
        public, _ = message(tally_of([(kind, "d", 1) for kind in kinds]), publish_numbers=False)
        assert [fix for fix in (skip, own_unit) if fix in public] == fixes


def test_only_the_kinds_that_a_job_refuses_end_it(make_spec: Any) -> None:
    unit = {"kind": "User", "column": "id"}
    own = {**unit, "missing": "OwnUnit"}
    others = set(Unusable) - {Unusable.NO_ID}
    for options, refused in (
        ({}, others),
        ({"unit": unit}, set(Unusable)),
        ({"unit": own}, others),
        ({"unusable": "Skip"}, set()),
        ({"unusable": "Skip", "unit": unit}, {Unusable.NO_ID}),
        ({"unusable": "Skip", "unit": own}, set()),
    ):
        assert refused_kinds(make_spec({"text": "text"}, **options).dataset) == refused
    tally_of([(Unusable.NO_TEXT, "d", 1)]).check(
        refused={Unusable.NO_ID}, where="w", place=lambda file, at: "", publish_numbers=False
    )


def test_many_files_are_not_all_named() -> None:
    tally = tally_of([(Unusable.NO_TEXT, f"part-{number}.csv", 1) for number in range(30)])
    assert "part-17.csv and 20 more files have no text" in message(tally, publish_numbers=False)[0]


UNUSABLE = {
    Unusable.NO_TEXT: {"text": " ", "label": "red"},
    Unusable.NOT_TEXT: {"text": ["secret"], "label": "red"},
    Unusable.NO_LABEL: {"text": "secret", "label": None},
    Unusable.UNKNOWN_LABEL: {"text": "secret", "label": "secret"},
}


@pytest.fixture
def make_shard(make_spec: Any, make_tokenizer: Any, tmp_path: Path) -> Any:
    """Makes the shard of the only pod of a job with these records, and returns its texts and classes."""

    def make(records: list[dict[str, Any]], **dataset: Any) -> list[tuple[str, int]]:
        path = tmp_path / "notes.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        spec = make_spec(COLUMNS, labels=2, label_names=["red", "1"], uri=str(path), **dataset)
        tokenizer = make_tokenizer()
        tokenise = tokeniser(tokenizer, Recipe.from_spec(spec))
        made = prepare_pod_shard(spec, tokenise, rank=0, workers=1, key=b"k" * 32, directory=tmp_path / "work")
        shard = Shard.open(made.shard)
        return sorted((tokenizer.decode(shard.tokens(i)), shard.label(i)) for i in range(len(shard)))

    return make


@pytest.mark.parametrize("kind", UNUSABLE, ids=lambda kind: kind.value)
def test_unusable_record_ends_the_job_or_is_left_out(make_shard: Any, kind: Unusable) -> None:
    usable = [{"text": "a", "label": " Red"}, {"text": "b", "label": 1}, {"text": "c", "label": "1.0"}]
    expected = [("a", 0), ("b", 1), ("c", 1)]
    records = [usable[0], UNUSABLE[kind], *usable[1:], UNUSABLE[kind]]
    assert make_shard(usable) == make_shard(records, unusable="Skip") == expected
    for refuse in ({}, {"unusable": "Refuse"}):
        with pytest.raises(DataError, match=rf"notes\.jsonl have {kind.description}".replace("(", r"\(")[:60]) as error:
            make_shard(records, **refuse)
        public, cause = str(error.value), str(error.value.__cause__)
        assert f"2 records have {kind.description} (the first: " in cause and "notes.jsonl, line 2)" in cause
        assert "2 records" not in public and ", line" not in public
        assert "secret" not in public + cause


def test_record_has_one_kind_alone(make_shard: Any) -> None:
    """Otherwise the numbers of a message would be more than the records."""
    with pytest.raises(DataError) as error:
        make_shard([{"text": "a", "label": "red"}, {"text": None, "label": None}, {"text": 7, "label": "secret"}])
    cause = str(error.value.__cause__)
    assert "1 record has no text (the first: " in cause and "1 record has a value that is not text" in cause
    assert "label" not in cause


def test_evaluation_set_has_the_same_rule(make_spec: Any, make_tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    path.write_text("text,label\na,red\nb,secret\n")

    def prepared(**dataset: str) -> int:
        spec = make_spec(COLUMNS, labels=2, label_names=["red", "blue"], **dataset)
        evaluation = {"uri": str(path), "visibility": "Public"}
        spec = spec.model_validate({**spec.model_dump(exclude_unset=True), "evaluation": evaluation})
        tokenise = tokeniser(make_tokenizer(), Recipe.from_spec(spec))
        made = prepare_pod_evaluation(spec, tokenise, rank=0, directory=tmp_path / "work")
        assert made is not None
        return len(Shard.open(made))

    with pytest.raises(DataError, match=r"^spec\.evaluation: some records of .*public\.csv have a label that is none"):
        prepared()
    assert prepared(unusable="Skip") == 1
