"""The counts of an inspection are those of the shards that a training would map."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensafe_api.resources.job import Spec
from tensorguard.data.memory import memory_tables
from tensorguard.data.partition import merge, no_records, split_by_unit
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard
from tensorguard.data.tokenise import Example, Tokeniser
from tensorguard.data.unusable import Unusable
from tensorguard.inspection.collect import WHOLE_LENGTH, Collector, small, whole_recipe
from tests.support.trainer.tokenising import tokeniser

KEY, WORKERS = b"0123456789abcdef", 3
Rows = Sequence[dict[str, Any]]
MakeSpec = Callable[..., Spec]


@pytest.fixture
def rows() -> Rows:
    """Records of users of very different numbers of records; some without text, some that occur twice."""
    draw = random.Random(7)
    words = ["the", "dog", "cat", "runs", "sleeps", "well"]
    found: list[dict[str, Any]] = [
        {
            "t": " ".join(draw.choices(words, k=draw.randint(1, 40))),
            "l": draw.randrange(3),
            "u": int(draw.expovariate(0.1)),
        }
        for _ in range(400)
    ]
    found += found[:25]
    return [{**row, "t": None} if i % 31 == 0 else row for i, row in enumerate(found)]


def collected(spec: Spec, tokenizer: Any, rows: Rows, tokenise: Tokeniser | None = None, **options: Any) -> Collector:
    recipe = Recipe.from_spec(spec)
    tokenise = tokenise or tokeniser(tokenizer, recipe)
    collector = Collector(spec, tokenise, tokeniser(tokenizer, whole_recipe(recipe)), **options)
    for table in memory_tables(list(rows), Wanted.of(spec)):
        for piece in small(table, replace(tokenise, inputs=tokenise.inputs)):
            collector.add(piece)
    return collector


def trained_shards(spec: Spec, tokenizer: Any, rows: Rows) -> list[Shard]:
    """What the workers of a training would map."""
    tokenise = tokeniser(tokenizer, Recipe.from_spec(spec))
    parts = [
        split_by_unit(table, tokenise=tokenise, key=KEY, workers=WORKERS).tables
        for table in memory_tables(list(rows), Wanted.of(spec))
    ]
    limit = spec.dataset.unit.max_examples_per_unit
    return [Shard(merge([no_records(tokenise), *(part[rank] for part in parts)], limit)) for rank in range(WORKERS)]


@pytest.mark.parametrize(
    "unit",
    [
        {},
        {"kind": "User", "column": "u"},
        {"kind": "User", "column": "u", "maxExamplesPerUnit": 2},
        {"kind": "User", "column": "u", "maxExamplesPerUnit": 3, "missing": "OwnUnit"},
    ],
)
@pytest.mark.parametrize("over_length", ["Truncate", "Drop"])
def test_counts_are_those_of_a_training(
    make_spec: MakeSpec, tokenizer: Any, rows: Rows, unit: dict[str, Any], over_length: str
) -> None:
    if unit.get("missing"):
        rows = [{**row, "u": None} if i % 7 == 0 else row for i, row in enumerate(rows)]
    spec = make_spec(
        {"text": "t", "label": "l"}, unit=unit, labels=3, overLength=over_length, unusable="Skip", max_length=24
    )
    found = collected(spec, tokenizer, rows)
    shards = trained_shards(spec, tokenizer, rows)
    assert len(found.units()) == sum(map(len, shards)) > 10
    assert found.trained() == sum(len(shard.records(unit)) for shard in shards for unit in range(len(shard)))
    everything = spec.model_copy(
        update={
            "dataset": spec.dataset.model_copy(
                update={"unit": spec.dataset.unit.model_copy(update={"max_examples_per_unit": None})}
            )
        }
    )
    kept = trained_shards(everything, tokenizer, rows)
    sizes = [len(shard.records(unit)) for shard in kept for unit in range(len(shard))]
    assert sorted(found.units().tolist()) == sorted(sizes)
    assert found.usable == sum(sizes)
    labels = Counter(
        shard.label(record) for shard in kept for unit in range(len(shard)) for record in shard.records(unit)
    )
    assert found.labels() == {str(number): labels[number] for number in range(3)}
    assert found.usable + found.left_out + sum(count for count, _ in without_no_id(found)) == found.records == len(rows)
    assert (found.left_out > 0) == (over_length == "Drop")


def without_no_id(found: Collector) -> list[tuple[int, int]]:
    return [each for (kind, _), each in found.tally.found.items() if kind is not Unusable.NO_ID]


def test_records_without_an_id_are_usable_only_as_units_of_their_own(make_spec: MakeSpec, tokenizer: Any) -> None:
    rows = [{"t": "the dog", "u": user} for user in ("a", "a", None, "", "b")]
    unit = {"kind": "User", "column": "u"}
    refused = collected(make_spec({"text": "t"}, unit=unit), tokenizer, rows)
    assert (refused.usable, len(refused.units()), refused.without_id) == (3, 2, 2)
    own = collected(make_spec({"text": "t"}, unit={**unit, "missing": "OwnUnit"}), tokenizer, rows)
    assert (own.usable, len(own.units()), own.without_id) == (5, 4, 2)


def test_lengths_are_those_before_records_are_cut(make_spec: MakeSpec, tokenizer: Any) -> None:
    lengths = [1, 5, 7, 8, 9, 30, 60]  # with the end token: one more
    rows = [{"t": " ".join(["dog"] * length)} for length in lengths]
    for over_length in ("Truncate", "Drop"):
        found = collected(make_spec({"text": "t"}, max_length=8, overLength=over_length), tokenizer, rows)
        measured = found.lengths()
        assert measured is not None and measured.tokens is not None
        assert (measured.tokens.min, measured.tokens.median, measured.tokens.max) == (2, 9, 61)
        assert (measured.max_length, measured.cut, measured.prompts_cut) == (8, 4, None)
        assert found.left_out == (4 if over_length == "Drop" else 0)


def test_longest_texts_count_up_to_a_limit(make_spec: MakeSpec, tokenizer: Any) -> None:
    found = collected(make_spec({"text": "t"}), tokenizer, [{"t": "dog " * (WHOLE_LENGTH + 5)}, {"t": "dog"}])
    measured = found.lengths()
    assert measured is not None and measured.tokens is not None
    assert measured.tokens.max == measured.limit == WHOLE_LENGTH


def test_prompts_that_are_cut_are_counted(make_spec: MakeSpec, tokenizer: Any) -> None:
    """The tokeniser of this test keeps the end of a prompt."""
    spec = make_spec({"prompt": "p", "completion": "c"}, max_length=6)

    def encode(records: Any) -> list[Example | Unusable | None]:
        found: list[Example | Unusable | None] = []
        for prompt, completion in zip(records["prompt"], records["completion"]):
            first, last = (tokenizer(text)["input_ids"] for text in (prompt, f"{completion} <end>"))
            ids = [*first[max(0, len(first) + len(last) - 6) :], *last]
            found.append(Example(ids, [0] * (len(ids) - len(last)) + [1] * len(last)))
        return found

    whole = tokeniser(tokenizer, Recipe.from_spec(spec))
    rows = [{"p": "the dog " * 5, "c": "runs"}, {"p": "the", "c": "dog runs"}]
    measured = collected(spec, tokenizer, rows, Tokeniser(encode, whole.target)).lengths()
    assert measured is not None and (measured.cut, measured.prompts_cut) == (1, 1)


def test_record_whose_tokenizer_fails_is_counted_once(make_spec: MakeSpec, tokenizer: Any) -> None:
    spec = make_spec({"text": "t"})
    inner = tokeniser(tokenizer, Recipe.from_spec(spec))

    def encode(records: Any) -> Any:
        if "fever" in records["text"]:
            raise RuntimeError("fever")
        return inner(records)

    found = collected(spec, tokenizer, [{"t": t} for t in ("dog", "fever", "cat")], Tokeniser(encode, inner.target))
    assert (found.usable, found.left_out) == (2, 0)
    assert found.tally.found == {(Unusable.NOT_TOKENISED, ""): (1, 1)}
    measured = found.lengths()
    assert measured is not None and measured.tokens is not None
    assert sum(each.count for each in measured.tokens.histogram) == 2


def test_equal_records_are_counted(make_spec: MakeSpec, tokenizer: Any) -> None:
    rows = [{"t": text, "u": 1} for text in ("dog", "cat", "dog", "dog", "cat runs", "cat runs")]
    found = collected(make_spec({"text": "t"}), tokenizer, rows).duplicates()
    assert (found.records, found.copies) == (2, 3)
    by_user = make_spec({"text": "t"}, unit={"kind": "User", "column": "u"})
    others = [{**row, "u": i} for i, row in enumerate(rows)]
    assert collected(by_user, tokenizer, others).duplicates().records == 0


def test_texts_of_other_labels_are_kept_only_on_request(make_spec: MakeSpec, tokenizer: Any) -> None:
    rows = [{"t": "dog", "l": label} for label in ("ward", "Ward ", "7", "clinic", None)]
    spec = make_spec({"text": "t", "label": "l"}, labels=2, names=["ward", "home"])
    hidden, shown = (collected(spec, tokenizer, rows, show_records=show).other_labels() for show in (False, True))
    assert hidden is not None and (hidden.records, hidden.distinct, hidden.largest, hidden.texts) == (2, 2, None, None)
    assert shown is not None and shown.texts == {"7": 1, "clinic": 1}
    numbers = collected(
        make_spec({"text": "t", "label": "l"}, labels=2), tokenizer, [{"t": "dog", "l": i} for i in (1, 2, 5)]
    )
    others = numbers.other_labels()
    assert others is not None and others.largest == 5


def test_tags_are_counted_by_word(make_spec: MakeSpec, tokenizer: Any) -> None:
    rows = [
        {"w": ["the", "dog"], "g": ["O", "B-x"]},
        {"w": ["cat"], "g": ["o"]},
        {"w": ["cat", "runs"], "g": ["O", "B-y"]},
    ]
    spec = make_spec({"tokens": "w", "tags": "g"}, labels=2, names=["O", "B-x"])
    found = collected(spec, tokenizer, rows)
    assert found.labels() == {"O": 2, "B-x": 1}
    others = found.other_labels()
    assert others is not None and (others.records, others.distinct) == (1, 1)


def test_no_content_is_kept(make_spec: MakeSpec, tokenizer: Any) -> None:
    """What is held of each record is a few numbers."""
    spec = make_spec({"text": "t", "label": "l"}, labels=2, unit={"kind": "User", "column": "u"})
    found = collected(
        spec, tokenizer, [{"t": "dog fever", "l": "clinic", "u": "Ann Lee"}] * 3 + [{"t": "cat", "l": 1, "u": 4}]
    )
    assert sum(rows.nbytes for rows in found._keys) == 32 * found.usable
    assert not found.shown and not found._ids._texts
    assert all(rows.dtype == np.uint64 for rows in found._keys)
