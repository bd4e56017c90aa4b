"""Scalars: what a decimal string, a quantity, a name and a URI may look like."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tensafe_api.resources import values
from tensafe_api.resources.values import number, quantity


def accepts(kind: object, value: object) -> bool:
    try:
        return TypeAdapter(kind).validate_python(value) == value
    except ValidationError:
        return False


@pytest.mark.parametrize("text", ["8", "0.05", "2e-4", "1E+3", "10.0", "1e-06"])
def test_decimal_strings_stay_what_they_are(text: str) -> None:
    assert TypeAdapter(values.PositiveDecimal).validate_python(text) == text
    assert number(text) == float(text)


NO_NUMBERS = [
    "",
    " 8",
    "8 ",
    "8\n",
    "+5",
    "-1",
    ".5",
    "5.",
    "0x1p-2",
    "inf",
    "Infinity",
    "nan",
    "NaN",
    "eight",
    "1_000",
    "08",
]


@pytest.mark.parametrize("text", [*NO_NUMBERS, "1e999", "٣"])
def test_what_is_no_finite_decimal_number_is_refused(text: str) -> None:
    assert not accepts(values.NonNegativeDecimal, text)
    with pytest.raises(ValueError):
        number(text)


@pytest.mark.parametrize("value", [8, 8.0, math.nan, math.inf, True, None, ["8"]])
def test_only_strings_are_decimal_strings(value: object) -> None:
    assert not accepts(values.NonNegativeDecimal, value)


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (values.PositiveDecimal, ["1e-300", "1e299"], ["0", "0.0", "1e-999", "1e300"]),
        (values.NonNegativeDecimal, ["0", "5"], ["1e300"]),
        (values.GradNorm, ["1e-6", "1.0", "1e6"], ["0", "1e-320", "9e-7", "1000001"]),
        (values.Epsilon, ["1e-3", "8", "1e12"], ["0", "1e13"]),
        (values.LearningRate, ["1e-9", "100"], ["0", "101", "1e60"]),
        (values.WeightDecay, ["0", "100"], ["1e299"]),
        (values.LossScale, ["1", "1024", "16777216"], ["0", "0.5", "1e-320", "16777217"]),
        (values.Delta, ["1e-300", "1e-9", "0.999"], ["0", "1e-301", "1e-320", "1", "1.0"]),
        (values.Share, ["0", "0.999"], ["1", "1e0"]),
        (values.Fraction, ["0", "1", "1.0"], ["1.001", "2"]),
    ],
)
def test_ranges(kind: object, inside: list[str], outside: list[str]) -> None:
    assert [text for text in inside if not accepts(kind, text)] == []
    assert [text for text in outside if accepts(kind, text)] == []


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (values.PositiveDecimal, "-1", '"-1" must be above 0'),
        (values.GradNorm, "-0.5", '"-0.5" must be above 0'),
        (values.NonNegativeDecimal, "-1e3", '"-1e3" must not be below 0'),
        (values.PositiveDecimal, "-x", '"-x" is not a decimal number'),
        (values.PositiveDecimal, "NaN", '"NaN" is not a decimal number'),
        (values.PositiveDecimal, math.nan, "nan is not a decimal number"),
        (values.PositiveDecimal, math.inf, "inf is not a decimal number"),
    ],
)
def test_what_is_said_of_a_wrong_decimal(kind: object, value: object, sentence: str) -> None:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(kind).validate_python(value)
    assert error.value.errors()[0]["msg"].startswith(sentence)


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=1e299, allow_nan=False))
def test_every_python_float_can_be_written(value: float) -> None:
    assert accepts(values.NonNegativeDecimal, repr(value))
    assert number(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("500m", 0.5), ("64Gi", 64 * 2**30), ("1.5k", 1500), ("2T", 2e12), ("1Mi", 2**20)]
)
def test_quantities(text: str, size: float) -> None:
    assert quantity(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1 Gi", "1gi", "1e3", "١"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError):
        quantity(text)
    assert not accepts(values.Memory, text)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (values.Memory, ["8Gi", "512M", "1.5Gi", "1000"], ["0", "0Gi", "500m", "8GB", "8 Gi"]),
        (values.Cpus, ["8", "500m", "0.5"], ["0", "0m", "8Gi", "two"]),
        (values.JobName, ["a", "claims-triage", "a" * 40], ["", "A", "1a", "a-", "a_b", "a.b", "a" * 41]),
        (values.ObjectName, ["a", "1a", "a.b-c"], ["", "A", "-a", "a_b"]),
        (values.OptionalName, ["", "gpu-queue"], [" ", "A"]),
        (
            values.URI,
            ["s3://b/k/", "gs://b", "file:///a b", "pvc://claim/p", "hf://a/b", "data.csv", "../d/*.csv", "/a/b"],
            ["", "s3:/b", "S3://b", "s3://", "c:\\data", "a\nb"],
        ),
        (values.Endpoint, ["https://minio:9000", "http://a/b"], ["minio:9000", "s3://a", "https://", "https://a b"]),
        (values.ResourceName, ["nvidia.com/gpu", "amd.com/gpu"], ["gpu", "nvidia.com/"]),
        (values.MountPath, ["/", "/mnt/data"], ["mnt", "", "/a:b"]),
        (values.EnvName, ["HF_TOKEN", "_a"], ["1A", "A-B", ""]),
        (values.Word, ["a", "two words"], ["", " a", "a ", "a\nb"]),
        (values.Timestamp, ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123+01:00"], ["2026-01-31", "now"]),
    ],
)
def test_forms(kind: object, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not accepts(kind, text)] == []
    assert [text for text in wrong if accepts(kind, text)] == []
