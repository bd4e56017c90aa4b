"""The words of a status are CamelCase, explained, and fit the fields that they stand in."""

from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter

from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.resources.values import Word


@pytest.mark.parametrize("reason", Reason)
def test_reasons_are_explained(reason: Reason) -> None:
    assert re.fullmatch(r"([A-Z][a-z]+)+", reason)
    assert reason.sentence.endswith(".")
    assert reason.mend.endswith(".") or reason is Reason.COMPLETED
    assert TypeAdapter(Word).validate_python(str(reason)) == reason.value


def test_no_word_has_two_meanings() -> None:
    assert len({reason.sentence for reason in Reason}) == len(Reason)


def test_final_phases() -> None:
    assert [phase.value for phase in Phase if phase.final] == ["Succeeded", "BudgetExhausted", "Failed"]


def test_no_word_is_a_truth_value_in_yaml() -> None:
    words = {word.value.lower() for kind in (Phase, ConditionType, Reason) for word in kind}
    assert not words & {"on", "off", "yes", "no", "true", "false", "null"}
