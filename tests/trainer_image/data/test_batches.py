"""Micro-batches: shapes that depend on a unit alone, complete units, and dummy rows without effect."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorguard.data.batches import count_micro_batches, evaluation_batches, micro_batches
from tensorguard.data.rows import TokenRows, buckets
from tensorguard.data.shard import Shard, Target, records_table, units_table

PAD = 9
lengths = st.integers(1, 70)
units_of_lengths = st.lists(st.lists(lengths, min_size=1, max_size=5), min_size=1, max_size=12)


def shard_of(units, labels=False):
    """A shard whose record r of length n holds the tokens 1000 r + 0, ..., n - 1; the even ones are learned."""
    sizes = [n for unit in units for n in unit]
    tokens = [[1000 * r + i for i in range(n)] for r, n in enumerate(sizes)]
    target = list(range(len(sizes))) if labels else [[(i + 1) % 2 for i in range(n)] for n in sizes]
    starts = np.cumsum([0] + [len(unit) for unit in units])[:-1]
    return Shard(
        units_table(records_table(tokens, target, Target.RECORD_LABEL if labels else Target.LEARNED_TOKENS), starts)
    )


def batches(shard, units, size=4, max_length=70):
    return list(micro_batches(shard, units, size=size, form=TokenRows(max_length, PAD, 99)))


def test_buckets_are_powers_of_two_up_to_max_length():
    assert buckets(100) == (16, 32, 64, 100)
    assert buckets(64) == (16, 32, 64)
    assert buckets(16) == (16,) and buckets(7) == (7,)


@pytest.mark.slow
@given(units_of_lengths, st.data(), st.integers(1, 5))
@settings(max_examples=60)
def test_all_records_of_all_units_appear_in_public_shapes(units, data, size):
    shard = shard_of(units)
    drawn = data.draw(st.lists(st.integers(0, len(units) - 1), unique=True))
    found = batches(shard, drawn, size)
    seen = [(unit, record) for batch in found for unit, record in zip(batch.units, batch.records)]
    assert Counter(seen) == Counter((unit, i) for unit in drawn for i in range(len(units[unit])))
    assert [seen[i] < seen[i + 1] for i in range(len(seen) - 1) if seen[i][0] == seen[i + 1][0]].count(False) == 0
    assert len({unit for i, (unit, _) in enumerate(seen) if i == 0 or seen[i - 1][0] != unit}) == len(drawn)
    for batch in found:
        assert batch.inputs["input_ids"].shape[0] == size
        own = {next(b for b in buckets(70) if b >= max(units[unit])) for unit in batch.units}
        assert own == {batch.inputs["input_ids"].shape[1]}
    widths = [batch.inputs["input_ids"].shape[1] for batch in found if len(batch.units) < size]
    assert len(widths) == len(set(widths)), "more than one batch of a bucket has dummies"


@given(units_of_lengths)
@settings(max_examples=40)
def test_rows_hold_their_record_and_dummy_rows_are_empty(units):
    shard = shard_of(units)
    for batch in batches(shard, range(len(units))):
        for tensor in (batch.inputs["input_ids"], batch.inputs["attention_mask"], batch.labels):
            assert tensor.dtype == torch.int64 and tensor.shape == batch.inputs["input_ids"].shape
        for row in range(4):
            ids, mask, labels = batch.inputs["input_ids"][row], batch.inputs["attention_mask"][row], batch.labels[row]
            if row >= len(batch.units):
                assert ids.eq(PAD).all() and labels.eq(-100).all()
                assert mask[0] == 1 and mask.sum() == 1
                continue
            unit, i = batch.units[row], batch.records[row]
            n = units[unit][i]
            first = 1000 * shard.records(unit)[i]
            assert ids[:n].tolist() == list(range(first, first + n)) and ids[n:].eq(PAD).all()
            assert mask.tolist() == [1] * n + [0] * (len(ids) - n)
            assert labels.tolist() == [first + j if j < n and j % 2 == 0 else -100 for j in range(len(ids))]


@given(units_of_lengths, st.data())
@settings(max_examples=40)
def test_shape_of_a_unit_does_not_depend_on_other_drawn_units(units, data):
    shard = shard_of(units)
    unit = data.draw(st.integers(0, len(units) - 1))
    alone = {batch.inputs["input_ids"].shape for batch in batches(shard, [unit])}
    among = {batch.inputs["input_ids"].shape for batch in batches(shard, range(len(units))) if unit in batch.units}
    assert alone == among and len(alone) == 1


def test_classification_has_one_label_for_each_row():
    [batch] = batches(shard_of([[3], [2, 5]], labels=True), [1, 0])
    assert batch.labels.tolist() == [1, 2, 0, -100]
    assert batch.units == (1, 1, 0) and batch.records == (0, 1, 0)


def test_labels_of_tags():
    """Tokens 1000 r + i; a token's label is its own number in the record, and the second one has none."""
    target = [[0, -100, 2], [0, -100], [0]]
    tokens = [[1000 * r + i for i in range(len(each))] for r, each in enumerate(target)]
    shard = Shard(units_table(records_table(tokens, target, Target.TOKEN_LABELS), np.array([0, 1])))
    [batch] = batches(shard, [1, 0])
    assert batch.labels.shape == (4, 16)
    assert batch.labels[:, :4].tolist() == [[0, -100, -100, -100], [0] + [-100] * 3, [0, -100, 2, -100], [-100] * 4]
    assert batch.labels[:, 4:].unique().tolist() == [-100]


def test_no_units_give_no_micro_batches():
    assert batches(shard_of([[3]]), []) == []


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_evaluation_batches_hold_every_record_once_over_all_ranks(workers):
    shard = shard_of([[n] for n in (3, 40, 5, 20, 6, 7, 8, 16, 17)])
    options = {"size": 2, "form": TokenRows(64, PAD, 99), "workers": workers}
    seen = [u for r in range(workers) for batch in evaluation_batches(shard, rank=r, **options) for u in batch.units]
    assert sorted(seen) == list(range(9))


@pytest.mark.parametrize("units", [[], [1], list(range(9))])
def test_micro_batches_of_dummies_fill_up_to_the_requested_number(units):
    shard = shard_of([[n] for n in (3, 40, 5, 20, 6, 7, 8, 16, 17)])
    form = TokenRows(64, PAD, 99)
    own = count_micro_batches(shard, units, size=2, form=form)
    assert own == len(batches(shard, units, size=2, max_length=64))
    filled = list(micro_batches(shard, units, size=2, form=form, at_least=own + 2))
    assert [batch.units for batch in filled[own:]] == [(), ()]
    assert all((batch.labels == -100).all() and batch.labels.shape == (2, 16) for batch in filled[own:])
    assert len(list(micro_batches(shard, units, size=2, form=form, at_least=own - 1))) == own


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_ranks_can_evaluate_the_same_number_of_micro_batches(workers):
    shard = shard_of([[n] for n in (3, 40, 5, 20, 6, 7, 8, 16, 17)])
    options = {"size": 2, "form": TokenRows(64, PAD, 99), "workers": workers, "same_number": True}
    ranks = [list(evaluation_batches(shard, rank=rank, **options)) for rank in range(workers)]
    assert len({len(rank) for rank in ranks}) == 1
    assert sorted(unit for rank in ranks for batch in rank for unit in batch.units) == list(range(9))
