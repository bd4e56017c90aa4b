"""Privacy events and figures: strings are used as written, and rounding never makes a claim smaller."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tensafe_api.resources.mechanism import Mechanism, PrivacyEvent, charged_events, round_up

MECHANISM = Mechanism(
    sample_rate="0.0128",
    noise_multiplier="0.8",
    clip="1.0",
    unit="User",
    workers=5,
    grid_bits=21,
    expected_batch_size=512,
)
finite = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)


@given(st.one_of(finite, st.decimals(min_value=0, max_value=Decimal("1e40"), allow_nan=False)), st.integers(0, 12))
def test_rounding_up_is_never_below_and_at_most_one_unit_above(value: float | Decimal, digits: int) -> None:
    text = round_up(value, digits)
    exact = Fraction(value)
    assert exact <= Fraction(text) < exact + Fraction(1, 10**digits)
    assert len(text.partition(".")[2]) <= digits
    assert not text.endswith(".") and "e" not in text.lower()
    assert "." not in text or not text.endswith("0")


@given(finite, st.integers(0, 12))
def test_rounding_up_is_idempotent(value: float, digits: int) -> None:
    text = round_up(value, digits)
    assert round_up(Decimal(text), digits) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.1, 3, "0.101"), (Decimal("0.1"), 3, "0.1"), (0.0, 6, "0"), (2.0, 6, "2"), (1e-30, 10, "0.0000000001")],
)
def test_rounding_up_examples(value: float | Decimal, digits: int, text: str) -> None:
    """The float 0.1 is slightly above 0.1."""
    assert round_up(value, digits) == text


def test_privacy_event_is_a_composed_poisson_sampled_gaussian() -> None:
    (event,) = charged_events(MECHANISM, 7)
    assert event == PrivacyEvent(sample_rate="0.0128", noise_multiplier="0.8", steps=7)


def test_privacy_event_is_stored_as_written() -> None:
    event = PrivacyEvent(sample_rate="0.01280", noise_multiplier="8e-1", steps=7)
    stored = event.model_dump(by_alias=True, mode="json")
    assert stored == {
        "kind": "PoissonSampledGaussian",
        "sampleRate": "0.01280",
        "noiseMultiplier": "8e-1",
        "steps": 7,
    }
    assert PrivacyEvent.model_validate(stored) == event


@pytest.mark.parametrize(
    "change", [{"kind": "Shuffled"}, {"steps": -1}, {"sigma": "1"}, {"sampleRate": None}, {"steps": 1.5}]
)
def test_invalid_privacy_event_is_refused(change: dict[str, object]) -> None:
    stored = {"kind": "PoissonSampledGaussian", "sampleRate": "0.1", "noiseMultiplier": "1", "steps": 7}
    with pytest.raises(ValidationError):
        PrivacyEvent.model_validate({**stored, **change})


def test_noise_shares_of_all_workers_add_up_to_the_noise_multiplier() -> None:
    assert MECHANISM.grid == 2**21
    assert MECHANISM.share_sigma**2 * 5 == pytest.approx((0.8 * MECHANISM.grid) ** 2)


def test_mechanism_is_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        MECHANISM.clip = "2.0"  # type: ignore[misc]
