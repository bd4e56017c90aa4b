# ruff: noqa: E501 - a case is a line
"""The rules for a text, a class and an id, as properties: one rule each, whatever type holds the value."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import json
import math
import unicodedata
import uuid
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe
from tensorguard.data.unusable import Unusable
from tensorguard.data.values import EXACT_FLOAT, NotAnId, UnusableValue, id_of, label_of, text_of


class Ward(Enum):
    A = 7


@dataclasses.dataclass
class Patient:
    number: int


def as_jsonl(value: Any) -> Any:
    return json.loads(json.dumps({"id": value}))["id"]


def as_csv(value: Any) -> str:
    file = io.StringIO()
    csv.writer(file).writerow([value, ""])
    return next(csv.reader(io.StringIO(file.getvalue())))[0]


def as_parquet(value: Any) -> Any:
    return pa.array([value]).to_pylist()[0]


def as_pandas(value: Any) -> Any:
    return pd.Series([value]).tolist()[0]


WRITERS: tuple[Callable[[Any], Any], ...] = (str, as_jsonl, as_csv, as_parquet, as_pandas)
IDS = st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.text(st.characters(codec="utf-8"))


def id_or_refused(value: Any) -> str | None:
    try:
        return id_of(value)
    except NotAnId:
        return "refused"


@given(IDS, st.sampled_from(WRITERS))
def test_id_is_the_same_whatever_writes_it(value: Any, write: Callable[[Any], Any]) -> None:
    assert id_or_refused(write(value)) == id_or_refused(value)


@given(IDS)
def test_form_of_an_id_is_final(value: Any) -> None:
    """An id that was compared once is the same when it is compared again."""
    found = id_or_refused(value)
    if found not in (None, "refused"):
        assert id_or_refused(found) == found


@given(st.integers(0, EXACT_FLOAT - 1))
def test_whole_number_is_one_id_in_any_type(number: int) -> None:
    spellings = [number, f"{number}", f"00{number}", f" {number}\t", f"+{number}", f"{number}.0", Decimal(number)]
    spellings += [Decimal(f"{number}.00"), np.int64(number), float(number), np.float64(number), f"{number}".encode()]
    spellings += [torch.tensor(number), pa.scalar(number).as_py(), np.str_(number), np.array(number)]
    assert {id_of(value) for value in spellings} == {str(number)}


@given(
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=20),
    st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]),
    st.sampled_from(["", " ", "\u00a0", "\t\n", "\u200b", "\ufeff", "\u00ad"]),
)
def test_spellings_of_a_text_are_one_id(text: str, form: Any, around: str) -> None:
    spelt = around + unicodedata.normalize(form, text) + around
    assert id_or_refused(spelt) == id_or_refused(text)
    assert id_or_refused(text.casefold()) == id_or_refused(text)


@pytest.mark.parametrize(
    "same",
    [
        ("P-7", "p-7", "P\u20117", "P\u22127", "p\u20137", "\uff30-7", "P\u00ad-7"),
        ("Ann Lee", "ann  lee", "ANN\tLEE", "\ufeffAnn\u00a0Lee"),
        ("Jos\u00e9", "Jose\u0301", b"jos\xc3\xa9"),
        ("Stra\u00dfe", "STRASSE"),
        (True, "true", "True", np.bool_(True)),
        (0, "0", "-0", -0.0, Decimal("-0.00"), False + 0),
        (7, "7e0", "70e-1", "\u0667", Ward.A, np.uint8(7), "7.00", "7.000000e+00"),
        (2**53 + 1, "9007199254740993", Decimal(2**53 + 1)),
        (10**30, "1" + "0" * 30, Decimal(10**30)),
        (uuid.UUID(int=5), str(uuid.UUID(int=5)), f"{{{uuid.UUID(int=5)}}}", f"urn:uuid:{uuid.UUID(int=5)}", uuid.UUID(int=5).hex),
        ("42".zfill(32), "42", 42, uuid.UUID("42".zfill(32)), str(uuid.UUID("42".zfill(32)))),
        ("ann", "ann\ufe0f", "a\u034fnn", "\u115fann", "ann\u3164", "ann\u2800", "ann\uffa0", "an\0n"),
    ],
    ids=lambda same: ascii(same[0]),
)  # fmt: skip
def test_these_ids_are_one(same: tuple[Any, ...]) -> None:
    assert len({id_of(value) for value in same}) == 1 and id_of(same[0]) is not None


def test_these_ids_are_apart() -> None:
    apart = [
        "a",
        "7a",
        "1_0",
        "1,0",
        "0x7",
        10,
        "7.5",
        -7,
        "7 0",
        "nan",
        "\u00bd",
        "e7",
        ".",
        "+",
        True,
        "Patient/3",
        3,
    ]
    apart += [2**53, 2**53 + 1, "10e4000", "2e4000", "10e4001", "1e400", uuid.UUID(int=6)]
    assert len({id_of(value) for value in apart} - {None}) == len(apart)


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", " \t\u00a0", float("nan"), np.float32("nan"), Decimal("nan"), pd.NA, pd.NaT, np.datetime64("NaT")),
        *("\u200b", "\0\0", "\ufffd", "J\ufffdrg", "\udcff", b""),
    ],
    ids=ascii,
)
def test_no_id(value: Any) -> None:
    assert id_of(value) is None


@pytest.mark.parametrize(
    "value",
    [
        {"id": 7}, {}, [7], (7,), np.array([7]), torch.tensor([7]), Patient(7), object(),
        '{"id": 7}', "[7]", datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2), datetime.time(3),
        datetime.timedelta(3), np.datetime64("2024-01-02"), pd.Timestamp(2024, 1, 2), pd.Period("2024"),
        np.float32(7), np.float16(7), torch.tensor(7.0), 7.5, Decimal("7.5"), math.inf, float(2**53), 1e300,
        b"\xff\xfe", b"\0\0\0\0\0\0\0\7", "1.23457E+11", "9.007199254740994e+15", "9007199254740994.0",
        "a" * 4097, 10**5000,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_no_scalar_is_no_id(value: Any) -> None:
    with pytest.raises(NotAnId) as error:
        id_of(value)
    assert "2024" not in str(error.value) and "7" not in str(error.value).replace("1.23457E+11", "")


NAMES = ("1", "2", "true", "Grau", "größe")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 0), (1.0, 0), ("1", 0), ("1.0", 0), (" 1 ", 0), (Decimal("1.00"), 0), (np.int8(1), 0), (b"1", 0),
        (2, 1), (True, 2), ("True", 2), ("grau", 3), (" GRAU\n", 3), ("gro\u0308ße", 4), ("GRÖSSE", 4),
        (0, None), (3, None), (False, None), (1.5, None), ("01", None), ("neg", None), (math.inf, None), ([1], None),
    ],
)  # fmt: skip
def test_named_class_is_compared_as_text(value: Any, number: int | None) -> None:
    recipe = Recipe({"text": "t", "label": "l"}, 8, labels=5, label_names=NAMES)
    assert class_of(recipe, value) == number


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0), (2, 2), ("2", 2), (2.0, 2), ("2.", 2), (" 0 ", 0), (Decimal(1), 1), (np.uint8(1), 1), (torch.tensor(1), 1),
        (3, None), (-1, None), ("red", None), (True, None), (1.5, None), ("1.5", None), ("9" * 400, None), ("²", None),
    ],
)  # fmt: skip
def test_class_without_a_name_is_a_number_from_zero(value: Any, number: int | None) -> None:
    assert class_of(Recipe({"text": "t", "label": "l"}, 8, labels=3), value) == number


def class_of(recipe: Recipe, value: Any) -> int | None:
    try:
        return recipe.class_of(label_of(value))
    except UnusableValue as error:
        assert error.kind is Unusable.UNKNOWN_LABEL
        return None


@given(
    st.integers(0, 2), st.sampled_from([int, float, str, np.int32, Decimal, lambda n: f" {n}.0 ", lambda n: b"%d" % n])
)
def test_class_is_the_same_in_any_type(number: int, kind: Callable[[int], Any]) -> None:
    names = ("2", "0", "1")
    assert class_of(Recipe({}, 8, labels=3), kind(number)) == number
    assert class_of(Recipe({}, 8, labels=3, label_names=names), kind(number)) == names.index(str(number))


@pytest.mark.parametrize("value", [None, "", "  ", float("nan"), pd.NA], ids=repr)
def test_no_label(value: Any) -> None:
    with pytest.raises(UnusableValue) as error:
        label_of(value)
    assert error.value.kind is Unusable.NO_LABEL


@pytest.mark.parametrize("value", [b"Fi\xe8vre", "Fi\udce8vre", "\ud83d"], ids=ascii)
def test_label_that_is_not_utf8(value: Any) -> None:
    with pytest.raises(UnusableValue) as error:
        label_of(value)
    assert error.value.kind is Unusable.NOT_UTF8


def test_names_that_are_one_text_are_refused_before_a_record_is_read(make_tokenizer: Any) -> None:
    from tests.support.trainer.tokenising import tokeniser

    with pytest.raises(DataError, match=r"spec\.model\.labelNames: 'Red' and ' red' are the same"):
        tokeniser(make_tokenizer(), Recipe({"text": "t", "label": "l"}, 8, labels=3, label_names=("Red", "2", " red")))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, Unusable.NO_TEXT), ("", Unusable.NO_TEXT), (" \n\u00a0", Unusable.NO_TEXT), (float("nan"), Unusable.NO_TEXT),
        (7, Unusable.NOT_TEXT), (True, Unusable.NOT_TEXT), (["a"], Unusable.NOT_TEXT), ({"a": 1}, Unusable.NOT_TEXT),
        (b"\xff", Unusable.NOT_UTF8), ("a\udcff", Unusable.NOT_UTF8),
    ],
    ids=ascii,
)  # fmt: skip
def test_what_is_no_text(value: Any, kind: Unusable) -> None:
    with pytest.raises(UnusableValue) as error:
        text_of(value)
    assert error.value.kind is kind


@given(st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: not text.isspace()))
def test_text_is_unchanged(text: str) -> None:
    assert text_of(text) == text_of(text.encode()) == text
    assert text_of(text + "\ud83d") == text + "\ufffd", "half of an emoji, which JSON can hold"
