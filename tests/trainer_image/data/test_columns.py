"""Which types of columns fit which roles."""

import pyarrow as pa
import pytest
from ray.data.extensions import ArrowPythonObjectType, ArrowTensorTypeV2, ArrowVariableShapedTensorType

from tensorguard.data.columns import FileColumns, check_types, form_of, value_in
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
        ("user", pa.timestamp("s"), False),
        ("user", pa.date32(), False),
        ("user", pa.duration("s"), False),
        ("user", pa.float64(), True),
        ("user", pa.float32(), False),
        ("user", pa.float16(), False),
        ("user", pa.decimal128(9, 2), True),
        ("user", pa.bool_(), True),
        ("user", pa.binary(), True),  # whether it is text is checked value by value
        ("user", pa.map_(pa.string(), pa.string()), False),
        ("label", pa.decimal128(9, 0), True),
        ("user", pa.struct({"id": pa.string()}), False),
    ],
)
def test_types_are_checked_by_the_schema_alone(role, kind, fits):
    if fits:
        check_types({role: "c"}, {"c": kind}, "spec.dataset.columns")
        return
    with pytest.raises(DataError, match=rf"^spec.dataset.columns: column 'c' \({role}\) is of type "):
        check_types({role: "c"}, {"c": kind}, "spec.dataset.columns")


@pytest.mark.parametrize(
    "name",
    ["gr\u00f6\u00dfe", "gro\u0308\u00dfe", " gr\u00f6\u00dfe", "\ufeffgr\u00f6\u00dfe", "gr\u00f6\u00dfe\u00a0"],
    ids=ascii,
)
def test_names_that_look_the_same_are_one_column(name):
    assert form_of(name) == "gr\u00f6\u00dfe"
    assert FileColumns(["a", name]).find("gr\u00f6\u00dfe") == (name,)
    assert value_in({name: 7}, "gr\u00f6\u00dfe") == 7


def test_path_reaches_into_objects():
    kind = pa.struct({"id": pa.int64(), "of": pa.struct({"ward": pa.string()})})
    typed = FileColumns(["user", "user.id"], {"user": kind, "user.id": pa.string()})
    assert typed.find("user.id") == ("user.id",), "a column of this name comes first"
    assert typed.find("user.of.ward") == ("user", "of", "ward") and typed.type_of("user.of.ward") == pa.string()
    assert typed.find("user.name") is None
    assert FileColumns(["user"], objects=False).find("user.id") is None
    record = {"user": {"id": 7, "of": {"ward": "b"}}}
    assert [value_in(record, name) for name in ("user.id", "user.of.ward", "user.x", "x.id")] == [7, "b", None, None]
    assert value_in({"user": [{"id": 7}]}, "user.id") == [[{"id": 7}]], "an id is no list: such a path is refused"
