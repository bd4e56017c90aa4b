"""An evaluation set is recognised as training data by its content, and never because of a single record."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorguard.data.errors import DataError
from tensorguard.data.memory import memory_tables
from tensorguard.data.overlap import Overlap, content_digests
from tensorguard.data.raw_table import Wanted

Rows = list[dict[str, Any]]


def rows(first: int, last: int) -> Rows:
    return [{"text": f"note {number}", "label": number % 3} for number in range(first, last)]


def values(records: Rows) -> dict[str, list[Any]]:
    return {role: [record[role] for record in records] for role in records[0]} if records else {}


def is_refused(public: Rows, private: Rows, blocks: int = 3) -> bool:
    """Whether `public` is refused, after the private records were compared in several blocks."""
    overlap = Overlap(content_digests(values(public)))
    for block in range(blocks):
        if part := private[block::blocks]:
            overlap.add(values(part))
    try:
        overlap.check("spec.evaluation.uri")
    except DataError as refusal:
        assert str(refusal).startswith("spec.evaluation.uri: most of its records are also in spec.dataset")
        assert not any(character.isdigit() for character in str(refusal)), "no count is published"
        return True
    return False


def test_copy_in_any_order_and_any_part_of_the_training_data_is_refused() -> None:
    private = rows(0, 200)
    shuffled = random.Random(0).sample(private, len(private))
    for public in (private, shuffled, shuffled[:20], private[:8], private * 2, [*private, *rows(500, 600)]):
        assert is_refused(public, private)


def test_other_data_and_small_overlaps_are_accepted() -> None:
    private = rows(0, 200)
    for public in (
        rows(200, 400),
        rows(190, 230),
        [*rows(0, 10), *rows(500, 510)],
        [{"text": "note 1", "label": 2}] * 9,
    ):
        assert not is_refused(public, private)


def test_copy_is_recognised_in_any_types_and_white_space() -> None:
    """A file with types adds nulls to all objects and makes whole numbers floats, if one record has more fields."""
    plain = [[{"role": "user", "content": f"note {number}", "seen": number}] for number in range(20)]
    typed = [[{**message, "seen": float(message["seen"]), "tool_calls": None} for message in each] for each in plain]
    copies = (plain, typed, [json.dumps(each) for each in plain], [json.dumps(each, indent=2) for each in typed])
    found = [
        table.column("messages").to_pylist()
        for copy in copies
        for table in memory_tables([{"m": each} for each in copy], Wanted({"messages": "m"}))
    ]
    for private in found:
        for public in found:
            overlap = Overlap(content_digests({"messages": public}))
            overlap.add({"messages": private})
            assert len(overlap.found) == 20
    texts = [f"[INST] note {number} [/INST]" for number in range(20)]
    assert is_refused([{"text": f"{text} \n"} for text in texts], [{"text": text} for text in texts])


def test_few_records_are_not_compared_so_that_no_one_can_ask_for_a_single_record() -> None:
    private = rows(0, 200)
    for few in range(1, 8):
        assert not is_refused(private[:few], private)
        assert not is_refused(private[:few] * 20, private), "only different records count"


@given(public=st.integers(1, 30), common=st.integers(0, 30), more=st.integers(0, 5))
@settings(max_examples=40)
def test_one_private_record_matters_only_if_half_of_the_set_is_common(public: int, common: int, more: int) -> None:
    common = min(public, common)
    evaluation, private = rows(0, public), [*rows(0, common), *rows(100, 100 + more)]
    changes = {is_refused(evaluation, [*private, *record]) for record in ([], evaluation[:1], evaluation[-1:])}
    assert len(changes) == 1 or abs(common - public / 2) <= 1


def test_different_contents_have_different_digests() -> None:
    contents = [None, "", "null", "None", "a", "aa", "A", 'a"', "1", "11", '["a", "b"]', '["ab"]', "a b", "[a", "{}"]
    assert len(np.unique(content_digests({"x": contents}))) == len(contents)


def test_every_role_is_compared_but_labels() -> None:
    one = content_digests({"prompt": ["a"], "completion": ["1"]})
    assert one.dtype == np.uint64
    assert one != content_digests({"prompt": ["a"], "completion": ["2"]})
    assert one != content_digests({"prompt": ["b"], "completion": ["1"]})
    for content, labels in (("text", "label"), ("tokens", "tags"), ("image", "label")):
        named = content_digests({content: ["a"], labels: ["positive"]})
        assert named == content_digests({content: ["a"], labels: [1]})
        assert named != content_digests({content: ["b"], labels: ["positive"]})


@pytest.mark.parametrize("text", ["a note\n", " a note", "a  note", "a\tnote \n"])
def test_white_space_does_not_hide_a_copy(text: str) -> None:
    assert (
        content_digests({"text": [text]})
        == content_digests({"text": ["a note"]})
        != content_digests({"text": ["anote"]})
    )


def test_copy_with_labels_in_another_encoding_is_refused() -> None:
    private = rows(0, 200)
    public = [{"text": row["text"] + "\n", "label": f"class {row['label']}"} for row in private]
    assert is_refused(public, private)
