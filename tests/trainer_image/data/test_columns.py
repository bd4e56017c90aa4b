"""Which types of columns fit which roles."""

import pyarrow as pa
import pytest
from ray.data.extensions import ArrowPythonObjectType, ArrowTensorTypeV2, ArrowVariableShapedTensorType

from tensorguard.data.columns import check_types
from tensorguard.data.errors import DataError


@pytest.mark.parametrize(
    ("role", "kind", "fits"),
    [
        ("text", pa.large_string(), True),
        ("text", pa.dictionary(pa.int32(), pa.string()), True),
        ("text", pa.int64(), False),
        ("completion", pa.list_(pa.string()), False),
        ("label", pa.int8(), True),
        ("label", pa.float64(), True),  # pandas converts integers with gaps to floats
        ("label", pa.list_(pa.int64()), False),
        ("label", pa.date32(), False),
        ("messages", pa.list_(pa.struct({"role": pa.string()})), True),
        ("messages", pa.string(), True),
        ("messages", pa.int64(), False),
        ("tokens", pa.list_(pa.string()), True),
        ("tokens", pa.large_list(pa.large_string()), True),
        ("tokens", pa.string(), True),
        ("tokens", pa.list_(pa.string(), 5), True),
        ("tokens", pa.list_(pa.dictionary(pa.int32(), pa.string())), True),
        ("tokens", pa.list_(pa.int64()), False),
        ("tokens", pa.int64(), False),
        ("tags", pa.list_(pa.int64()), True),
        ("tags", pa.list_(pa.dictionary(pa.int32(), pa.string())), True),
        ("tags", pa.string(), True),
        ("tags", pa.list_(pa.int8(), 5), True),
        ("tags", pa.list_(pa.list_(pa.int64())), False),
        ("tags", ArrowTensorTypeV2((2,), pa.int64()), True),
        ("tags", ArrowVariableShapedTensorType(pa.int64(), 1), True),
        ("tokens", ArrowTensorTypeV2((2,), pa.int64()), False),
        ("text", ArrowTensorTypeV2((2,), pa.int64()), False),
        ("label", ArrowTensorTypeV2((2,), pa.int64()), False),
        ("label", ArrowPythonObjectType(), True),
        ("user", ArrowTensorTypeV2((2,), pa.int64()), False),
        ("user", pa.uuid(), True),
        ("tags", pa.int64(), False),
        ("user", pa.int64(), True),
        ("user", pa.timestamp("s"), True),
        ("user", pa.struct({"id": pa.string()}), False),
    ],
)
def test_types_are_checked_by_the_schema_alone(role, kind, fits):
    if fits:
        check_types({role: "c"}, {"c": kind}, "spec.dataset.columns")
        return
    with pytest.raises(DataError, match=rf"^spec.dataset.columns: column 'c' \({role}\) is of type "):
        check_types({role: "c"}, {"c": kind}, "spec.dataset.columns")
