"""Values of the manifest that fit the data better, where those of the manifest fit badly.

A manifest is published, and these values come from private data, which no ε covers. So they are rounded, and a user
should take a public figure where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tensafe_api.resources.job import Spec
from tensorguard.inspection.distribution import Distribution
from tensorguard.inspection.inspection import Lengths, OtherLabels, Suggestion

MARGIN = 0.95
"""A lower bound is at most this share of the number."""
ROUND_LENGTH = 16
MAX_SUGGESTED_EXAMPLES = 64
"""Each record of a drawn user is computed, so that a large limit makes a step slow."""
MAX_LABELS = 1000
"""The largest number of classes that a manifest can have."""
_FAR_BELOW, _KEPT, _CUT = 0.5, 0.75, 0.01


def suggestions(
    spec: Spec,
    *,
    units: int,
    trained: int,
    usable: int,
    per_unit: Distribution | None,
    lengths: Lengths | None,
    other_labels: OtherLabels | None,
    longest: int | None,
) -> tuple[Suggestion, ...]:
    """The suggestions for a job. `longest`: how many tokens its model can read, where that is known."""
    found = (
        *_at_least(spec, units),
        *_max_examples(spec, trained, usable, per_unit),
        *_max_length(lengths, longest),
        *_num_labels(spec, other_labels),
    )
    return tuple(each for each in found if each.value != each.now)


def lower_bound(units: int) -> int:
    """A lower bound of a number of units above 0: some percent less, and rounded down to one or two digits."""
    bound = max(1, math.floor(MARGIN * units))
    digits = 2 if bound >= 100 else 1
    power = 10 ** max(0, len(str(bound)) - digits)
    return int(bound // power * power)


def _at_least(spec: Spec, units: int) -> Iterator[Suggestion]:
    now = int(spec.dataset.unit.at_least)
    private = "the number of units is private, and this bound is what is published"
    if not units:
        return
    if now > units:
        reason = (
            f"it is above the number of units ({units:,}), so batches are smaller than expectedBatchSize; {private}"
        )
    elif now < _FAR_BELOW * units:
        reason = f"it is far below the number of units ({units:,}), so batches are larger and steps slower; {private}"
    else:
        return
    yield Suggestion("spec.dataset.unit.atLeast", now, lower_bound(units), reason)


def _max_examples(spec: Spec, trained: int, usable: int, per_unit: Distribution | None) -> Iterator[Suggestion]:
    now = spec.dataset.unit.max_examples_per_unit
    if now is None or per_unit is None or trained >= _KEPT * usable:
        return
    value = min(per_unit.p90, MAX_SUGGESTED_EXAMPLES)
    if value > now:
        reason = f"only {trained:,} of {usable:,} records are trained; a higher limit keeps ε, and makes steps slower"
        yield Suggestion("spec.dataset.unit.maxExamplesPerUnit", now, value, reason)


def _max_length(lengths: Lengths | None, longest: int | None) -> Iterator[Suggestion]:
    if lengths is None or lengths.tokens is None:
        return
    now, total = lengths.max_length, sum(each.count for each in lengths.tokens.histogram)
    if lengths.cut > _CUT * total:
        value, reason = _rounded_up(lengths.tokens.p99), f"{lengths.cut:,} of {total:,} records are longer"
        if longest is not None and value > longest:
            value, reason = longest, f"{reason}; the model cannot read more"
        if value > now:
            yield Suggestion("spec.training.maxLength", now, value, f"{reason}; with this, 99 % would not be cut")
    elif now >= 2 * (value := _rounded_up(lengths.tokens.max)):
        reason = f"no record is longer than {value}: a smaller limit needs less memory"
        yield Suggestion("spec.training.maxLength", now, value, reason)


def _rounded_up(length: int) -> int:
    return -(-length // ROUND_LENGTH) * ROUND_LENGTH


def _num_labels(spec: Spec, other_labels: OtherLabels | None) -> Iterator[Suggestion]:
    now = spec.model.num_labels
    if now is None or other_labels is None or not other_labels.distinct:
        return
    what = f"{other_labels.records:,} labels are no class"
    if spec.model.label_names:
        value = now + other_labels.distinct
        reason = f"{what}: add {other_labels.distinct} names to model.labelNames, or correct the data"
    elif other_labels.largest is not None and other_labels.largest < MAX_LABELS:
        value = other_labels.largest + 1
        reason = f"{what}: classes are the numbers from 0, and the largest label is {other_labels.largest}"
    else:
        value = other_labels.distinct
        reason = f"{what}: the labels are texts, so write their {other_labels.distinct} names into model.labelNames"
    yield Suggestion("spec.model.numLabels", now, value, reason)
