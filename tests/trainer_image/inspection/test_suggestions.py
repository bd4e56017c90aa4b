"""Values are suggested where those of the manifest fit badly, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tensafe_api.resources.job import Spec
from tensorguard.inspection.distribution import Distribution, bins_of_lengths, bins_that_double
from tensorguard.inspection.inspection import Lengths, OtherLabels
from tensorguard.inspection.suggestions import lower_bound, suggestions


def suggested(spec: Spec, **found: Any) -> dict[str, int]:
    given: dict[str, Any] = {
        "units": 10,
        "trained": 10,
        "usable": 10,
        "per_unit": None,
        "lengths": None,
        "other_labels": None,
        "longest": None,
        **found,
    }
    return {each.field.rpartition(".")[2]: each.value for each in suggestions(spec, **given)}


def lengths(counts: dict[int, int], limit: int) -> Lengths:
    cut = sum(count for length, count in counts.items() if length > limit)
    return Lengths(limit, Distribution.of(counts, bins_of_lengths(counts, limit)), 1 << 15, cut, None)


@pytest.mark.parametrize(
    ("units", "bound"), [(1, 1), (9, 8), (50, 40), (302, 280), (4_812, 4_500), (5_000, 4_700), (67_349, 63_000)]
)
def test_lower_bound_is_round_and_below(units: int, bound: int) -> None:
    assert lower_bound(units) == bound


@pytest.mark.slow
def test_at_least_is_suggested_above_and_far_below(make_spec: Callable[..., Spec]) -> None:
    spec = make_spec({"text": "t"}, unit={"atLeast": 100})
    assert suggested(spec, units=99) == {"atLeast": 90}
    assert suggested(spec, units=100) == suggested(spec, units=200) == {}
    assert suggested(spec, units=201) == {"atLeast": 190}
    assert suggested(spec, units=0) == {}


def test_length_is_suggested_where_many_records_are_cut(make_spec: Callable[..., Spec]) -> None:
    spec = make_spec({"text": "t"}, max_length=32)
    fits = {"units": 10}
    assert suggested(spec, lengths=lengths({30: 99, 500: 1}, 32), **fits) == {}
    assert suggested(spec, lengths=lengths({30: 90, 70: 9, 500: 1}, 32), **fits) == {"maxLength": 80}
    assert suggested(spec, lengths=lengths({300: 100}, 32), longest=128, **fits) == {"maxLength": 128}
    assert suggested(spec, lengths=lengths({300: 100}, 128), longest=128, **fits) == {}
    assert suggested(spec, lengths=lengths({14: 100}, 32), **fits) == {"maxLength": 16}


def test_limit_of_records_is_suggested_where_few_are_trained(make_spec: Callable[..., Spec]) -> None:
    spec = make_spec({"text": "t"}, unit={"kind": "User", "column": "u", "maxExamplesPerUnit": 2})
    per_unit = Distribution.of({10: 9, 300: 1}, bins_that_double(300))
    assert suggested(spec, trained=20, usable=390, per_unit=per_unit) == {"maxExamplesPerUnit": 10}
    assert suggested(spec, trained=300, usable=390, per_unit=per_unit) == {}


def test_number_of_labels_is_suggested_where_labels_are_no_class(make_spec: Callable[..., Spec]) -> None:
    spec = make_spec({"text": "t", "label": "l"}, labels=5)
    assert suggested(spec, other_labels=OtherLabels(9, 1, 5, None)) == {"numLabels": 6}
    assert suggested(spec, other_labels=OtherLabels(9, 4, None, None)) == {"numLabels": 4}
    assert suggested(spec, other_labels=OtherLabels(0, 0, None, None)) == {}
    named = make_spec({"text": "t", "label": "l"}, labels=2, names=["a", "b"])
    assert suggested(named, other_labels=OtherLabels(9, 1, None, None)) == {"numLabels": 3}
