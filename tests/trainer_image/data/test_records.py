"""Records of data sets in memory: dicts, tuples, named tuples and rows of a DataFrame become dicts by column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from tensorguard.data.errors import DataError
from tensorguard.data.memory import memory_tables
from tensorguard.data.raw_table import Wanted
from tensorguard.data.records import fields_of, is_data_frame, is_data_loader, records_of


class Note(NamedTuple):
    text: str
    label: int


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return f"note {i}", torch.tensor(i)


class Patients(pd.DataFrame):
    """As libraries derive from it."""


def test_tuples_have_their_positions_as_columns():
    assert records_of([("a", 0), ["b", 1]], "train_dataset") == [{"0": "a", "1": 0}, {"0": "b", "1": 1}]
    assert records_of(Pairs(), "train_dataset") == [{"0": "note 0", "1": 0}, {"0": "note 1", "1": 1}]
    assert fields_of(Note("a", 1)) == {"text": "a", "label": 1}


def test_item_that_is_no_record_is_refused_with_its_index():
    with pytest.raises(DataError, match=r"train_dataset: must be a list, .*; the item at index 1 is of type str"):
        records_of([{"a": 1}, "b", None], "train_dataset")


def test_data_loader_is_refused():
    loader = torch.utils.data.DataLoader(Pairs())
    assert is_data_loader(loader) and not is_data_loader(Pairs())
    with pytest.raises(DataError, match="is a DataLoader, which makes batches: pass its data set"):
        records_of(loader, "train_dataset")


def raw(source, **columns):
    """The raw table of a data set in memory, without the places."""
    return pa.concat_tables(memory_tables(source, Wanted(columns))).drop_columns(["file", "at"])


@pytest.mark.parametrize("kind", [pd.DataFrame, Patients])
def test_rows_of_a_data_frame_are_those_of_a_list_of_dicts(kind):
    """A missing label makes floats of all integers of a column; each integer must still be one."""
    rows = [
        {"text": "a", "label": 1, "words": ["x", "y"], "id": 7},
        {"text": None, "label": 2, "words": ["z"], "id": None},
        {"text": "c", "label": None, "words": None, "id": 9007199254740991},
    ]
    frame = kind(rows)
    assert is_data_frame(frame) and frame["label"].dtype == np.float64
    table = raw(frame, text="text", label="label", tokens="words", user="id")
    assert table.to_pydict() == {
        "text": ["a", None, "c"],
        "label": ["1", "2", None],
        "tokens": ['["x", "y"]', '["z"]', None],
        "user": ["7", None, "9007199254740991"],
        "fault": [None, "NoText", "NoLabel"],
    }
    assert table.equals(raw(rows, text="text", label="label", tokens="words", user="id"))


@pytest.mark.parametrize("values", [[7, 8, 9], [7.0, 8.0, 2.0**40], ["7", 8, None], [True, False, True]], ids=repr)
@pytest.mark.parametrize("more", ["n/a", None, 10], ids=repr)
def test_row_of_a_data_frame_does_not_change_other_rows(values, more):
    """pandas chooses the type of a column from all its rows."""

    def table(cells):
        return raw(pd.DataFrame({"label": cells, "id": cells}), label="label", user="id")

    if not (isinstance(values[0], bool) and more == 10):  # pandas makes numbers of booleans beside a number
        assert table([*values, more]).slice(0, 3).equals(table(values))


def test_columns_of_a_data_frame_without_names_are_positions():
    assert raw(pd.DataFrame([("a", 0), ("b", 1)]), text="0", label="1").column("label").to_pylist() == ["0", "1"]


def test_data_frame_with_times_in_place_of_texts_is_refused():
    frame = pd.DataFrame({"when": [pd.Timestamp(2026, 1, 1), pd.NaT], "mixed": ["a", 1]})
    with pytest.raises(DataError, match=r"column 'when' \(text\) is of type timestamp"):
        raw(frame, text="when")
    assert raw(frame, text="mixed").to_pydict() == {"text": ["a", None], "fault": [None, "NotText"]}
