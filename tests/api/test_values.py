"""The forms of scalar values: decimal strings, quantities, names and URIs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tensafe_api.resources import numeric, strings
from tensafe_api.resources.numeric import parse_decimal, parse_quantity


def accepts(kind: object, value: object) -> bool:
    try:
        return TypeAdapter(kind).validate_python(value) == value
    except ValidationError:
        return False


@pytest.mark.parametrize("text", ["8", "0.05", "2e-4", "1E+3", "10.0", "1e-06"])
def test_decimal_string_keeps_its_value(text: str) -> None:
    assert TypeAdapter(numeric.PositiveDecimal).validate_python(text) == text
    assert parse_decimal(text) == float(text)


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
def test_string_that_is_not_a_finite_decimal_is_refused(text: str) -> None:
    assert not accepts(numeric.NonNegativeDecimal, text)
    with pytest.raises(ValueError):
        parse_decimal(text)


@pytest.mark.parametrize("value", [8, 8.0, math.nan, math.inf, True, None, ["8"]])
def test_only_strings_are_decimal_strings(value: object) -> None:
    assert not accepts(numeric.NonNegativeDecimal, value)


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (numeric.PositiveDecimal, ["1e-300", "1e299"], ["0", "0.0", "1e-999", "1e300"]),
        (numeric.NonNegativeDecimal, ["0", "5"], ["1e300"]),
        (numeric.GradNorm, ["1e-6", "1.0", "1e6"], ["0", "1e-320", "9e-7", "1000001"]),
        (numeric.Epsilon, ["1e-3", "8", "1e12"], ["0", "1e13"]),
        (numeric.LearningRate, ["1e-9", "100"], ["0", "101", "1e60"]),
        (numeric.WeightDecay, ["0", "100"], ["1e299"]),
        (numeric.LossScale, ["1", "1024", "16777216"], ["0", "0.5", "1e-320", "16777217"]),
        (numeric.Delta, ["1e-300", "1e-9", "0.999"], ["0", "1e-301", "1e-320", "1", "1.0"]),
        (numeric.Share, ["0", "0.999"], ["1", "1e0"]),
        (numeric.Fraction, ["0", "1", "1.0"], ["1.001", "2"]),
    ],
)
def test_ranges(kind: object, inside: list[str], outside: list[str]) -> None:
    assert [text for text in inside if not accepts(kind, text)] == []
    assert [text for text in outside if accepts(kind, text)] == []


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (numeric.PositiveDecimal, "-1", '"-1" must be above 0'),
        (numeric.GradNorm, "-0.5", '"-0.5" must be from 1e-6'),
        (numeric.NonNegativeDecimal, "-1e3", '"-1e3" must not be below 0'),
        (numeric.PositiveDecimal, "-x", '"-x" is not a decimal number'),
        (numeric.PositiveDecimal, "NaN", '"NaN" is not a decimal number'),
        (numeric.PositiveDecimal, math.nan, "nan is not a decimal number"),
        (numeric.PositiveDecimal, math.inf, "inf is not a decimal number"),
    ],
)
def test_message_about_an_invalid_decimal(kind: object, value: object, sentence: str) -> None:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(kind).validate_python(value)
    assert error.value.errors()[0]["msg"].startswith(sentence)


@given(st.floats(min_value=0, max_value=1e299, allow_nan=False))
def test_every_python_float_can_be_written(value: float) -> None:
    assert accepts(numeric.NonNegativeDecimal, repr(value))
    assert parse_decimal(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("500m", 0.5), ("64Gi", 64 * 2**30), ("1.5k", 1500), ("2T", 2e12), ("1Mi", 2**20)]
)
def test_quantities(text: str, size: float) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1 Gi", "1gi", "1e3", "١"])
def test_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_quantity(text)
    assert not accepts(numeric.Memory, text)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (numeric.Memory, ["8Gi", "512M", "1.5Gi", "256Mi"], ["0", "1", "255Mi", "500m", "8GB", "8 Gi"]),
        (numeric.Size, ["1Mi", "10Gi"], ["1", "1000k", "10GB"]),
        (numeric.Cpus, ["8", "500m", "0.5"], ["0", "0m", "8Gi", "two"]),
        (strings.JobName, ["a", "claims-triage", "a" * 40], ["", "A", "1a", "a-", "a_b", "a.b", "a" * 41]),
        (strings.ObjectName, ["a", "1a", "a.b-c"], ["", "A", "-a", "a_b", "a..b", "a.-b"]),
        (strings.OptionalName, ["", "gpu-queue"], [" ", "A", "a."]),
        (strings.QueueName, ["", "gpu-queue", "a" * 63], ["A", "a" * 64]),
        (
            strings.QualifiedName,
            ["zone", "Zone_1.a", "example.com/zone", "a/b"],
            ["", "a b", "-a", "a/", "/a", "a/b/c"],
        ),
        (strings.LabelValue, ["", "a", "A_1.b", "a" * 63], ["-a", "a b", "a" * 64]),
        (strings.DataKey, ["HF_TOKEN", "a.b", ".netrc", "-"], ["", ".", "..", "..a", "a b", "a/b"]),
        (
            strings.URI,
            [
                "s3://b/k/",
                "gs://b",
                "file:///a b",
                "pvc://claim/p",
                "pvc://claim",
                "hf://a/b",
                "memory://a",
                "../d/*.csv",
                "/a: b/12:00",
                "./12:00",
                "a/12:00",
            ],
            [
                "",
                "s3:/b",
                "S3://b",
                "s3://",
                "s3:///b",
                "pvc://",
                "pvc:///a",
                "pvc://A/b",
                "az://b",
                "c:\\data",
                "12:00/a",
                "a\nb",
            ],
        ),
        (strings.StoreURI, ["s3://b/k/", "pvc://claim/p", "out"], ["hf://a/b", "memory://a", "https://a/b"]),
        (strings.Endpoint, ["https://minio:9000", "http://a/b"], ["minio:9000", "s3://a", "https://", "https://a b"]),
        (
            strings.ResourceName,
            ["nvidia.com/gpu", "amd.com/gpu"],
            ["gpu", "nvidia.com/", "kubernetes.io/gpu", "a.kubernetes.io/gpu"],
        ),
        (
            strings.Image,
            ["a", "a:1", "registry.example:5000/team/a_b:0.1-cu12", f"a/b@sha256:{'0' * 64}", f"a:1@sha256:{'0' * 64}"],
            ["", " a", "a b", "https://a/b", "a:", "a@sha256:0"],
        ),
        (
            strings.RayVersion,
            ["2.52.0", "2.60.0", "2.52.0rc1", "2.100.1", "3.0.0", "10.1.0"],
            ["2.51.9", "2.5.0", "1.99.0", "2.60", "v2.60.0", "2.60.0-py311", "latest"],
        ),
        (strings.VolumeName, ["a", "data-1", "jobs", "a" * 63], ["job", "key", "run", "pvc-a", "a.b", "A", "a" * 64]),
        (
            strings.MountPath,
            ["/mnt", "/mnt/data", "/etc/tensafe2", "/var/lib", "/a.b/..c"],
            [
                "/",
                "mnt",
                "",
                "/a:b",
                "/a/",
                "//a",
                "/a/../b",
                "/a/.",
                "/etc",
                "/etc/tensafe/x",
                "/var/run",
                "/run/secrets",
            ],
        ),
        (strings.EnvName, ["HF_TOKEN", "_a"], ["1A", "A-B", ""]),
        (strings.OneLine, ["a", "two words"], ["", " a", "a ", "a\nb"]),
        (strings.Timestamp, ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123+01:00"], ["2026-01-31", "now"]),
    ],
)
def test_forms(kind: object, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not accepts(kind, text)] == []
    assert [text for text in wrong if accepts(kind, text)] == []


def test_chart_accepts_the_same_versions_of_ray() -> None:
    schema = json.loads((Path(__file__).parents[2] / "charts/tensafe/values.schema.json").read_text())
    pattern = schema["properties"]["trainer"]["properties"]["rayVersion"]["pattern"]
    assert pattern == f"^({strings.RAY_VERSION})$"
