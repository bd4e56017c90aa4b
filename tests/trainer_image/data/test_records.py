"""Records of data sets in memory: dicts, tuples, named tuples and rows of a DataFrame become dicts by column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from tensorguard.data.errors import DataError
from tensorguard.data.read import _records_table
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


def test_item_that_is_no_record_is_dropped_unless_all_are():
    assert records_of([{"a": 1}, "b", None], "train_dataset") == [{"a": 1}]
    with pytest.raises(DataError, match="eval_dataset: must be a list, a pandas DataFrame"):
        records_of(["a", "b"], "eval_dataset")


def test_data_loader_is_refused():
    loader = torch.utils.data.DataLoader(Pairs())
    assert is_data_loader(loader) and not is_data_loader(Pairs())
    with pytest.raises(DataError, match="is a DataLoader, which makes batches: pass its data set"):
        records_of(loader, "train_dataset")


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
    columns = {"text": "text", "label": "label", "tokens": "words", "user": "id"}
    table = _records_table(records_of(frame, "train_dataset"), columns, "train_dataset")
    expected = _records_table(rows, columns, "train_dataset")
    assert table.column("text").to_pylist() == ["a", None, "c"]
    assert table.column("label").to_pylist() == ["1", "2", None]
    assert table.column("words").to_pylist() == ['["x", "y"]', '["z"]', None]
    assert table.drop_columns("id").equals(expected.drop_columns("id"))


@pytest.mark.parametrize("values", [[7, 8, 9], [7.0, 8.5, 1e300], ["7", 8, None], [True, False, True]], ids=repr)
@pytest.mark.parametrize("more", [7.5, "n/a", None, 10, float("inf")], ids=repr)
def test_row_of_a_data_frame_does_not_change_other_rows(values, more):
    """pandas chooses the type of a column from all its rows."""
    columns = {"text": "text", "label": "label", "user": "id"}

    def table(cells):
        frame = pd.DataFrame({"text": cells, "label": cells, "id": cells})
        return _records_table(records_of(frame, "train_dataset"), columns, "train_dataset")

    assert table([*values, more]).slice(0, 3).equals(table(values))


def test_columns_of_a_data_frame_without_names_are_positions():
    assert records_of(pd.DataFrame([("a", 0), ("b", 1)]), "train_dataset") == [{"0": "a", "1": 0}, {"0": "b", "1": 1}]


def test_data_frame_of_any_scalars_can_be_read():
    frame = pd.DataFrame({"when": [pd.Timestamp(2026, 1, 1), pd.NaT], "share": [0.5, None], "mixed": ["a", 1]})
    columns = {"text": "when", "label": "share", "prompt": "mixed"}
    table = _records_table(records_of(frame, "train_dataset"), columns, "train_dataset")
    assert table.column("share").to_pylist() == ["0.5", None]
    assert table.column("mixed").to_pylist() == ["a", "1"]
    assert table.column("when").to_pylist() == [None, None]
