"""Reading data sets in memory: what cannot be used, and what errors repeat of it."""

import datetime
import uuid

import datasets
import pandas as pd
import pytest

from e2e.platform.trainer.data_files import TEXT_LABEL
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.read import _records_table, from_memory


@pytest.mark.parametrize(
    "source",
    [
        pd.DataFrame([["Alice Smith", 1], ["Bob", 0]], columns=["Alice Smith", "1"]),
        [{"Alice Smith": "HIV", "Bob Jones": "flu"}],
        datasets.Dataset.from_list([{"Alice Smith": "HIV"}]),
        datasets.Dataset.from_list([{"text": {"Alice Smith": "HIV"}, "label": 1}]),
        datasets.Dataset.from_list([{"text": [{"Alice Smith": "HIV"}], "label": 1}]),
    ],
    ids=["DataFrame", "dicts", "Hugging Face", "struct", "list of structs"],
)
def test_record_in_place_of_column_names_in_memory_is_not_repeated(source):
    with pytest.raises(DataError) as error:
        from_memory(source, TEXT_LABEL)
    assert "Alice" not in str(error.value) and "train_dataset: " in str(error.value)


def test_ids_in_memory_that_json_cannot_hold_are_kept():
    ids = (uuid.UUID(int=1), datetime.date(2026, 1, 31), b"\xff", "\ud800")
    rows = _records_table([{"u": u} for u in ids for _ in range(2)], {"user": "u"}, "train_dataset").to_pylist()
    assert len({row["u"] for row in rows} - {None}) == len(ids)


def test_error_of_a_data_set_in_memory_reveals_no_record():
    class Broken:
        def __len__(self):
            return 1

        def __getitem__(self, i):
            raise ValueError("cannot parse 'Jane Doe has HIV'")

    def generator():
        yield {"text": "a"}
        raise RuntimeError("Jane Doe has HIV")

    for source, kind in ((Broken(), "ValueError"), (generator(), "RuntimeError")):
        with pytest.raises(UnreadableDataError) as error:
            from_memory(source, {"text": "text"})
        assert str(error.value) == f"train_dataset: reading failed ({kind})"
        assert error.value.__suppress_context__
