"""Reading data sets in memory: what cannot be used, and what errors repeat of it."""

import datasets
import pandas as pd
import pytest

from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.raw_table import Wanted
from tensorguard.data.read import from_memory
from tests.support.trainer.data_files import TEXT_LABEL


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
        from_memory(source, Wanted(TEXT_LABEL))
    assert "Alice" not in str(error.value) and "train_dataset: " in str(error.value)


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
            from_memory(source, Wanted({"text": "text"}))
        assert str(error.value) == f"train_dataset: reading failed ({kind})"
        assert error.value.__suppress_context__
