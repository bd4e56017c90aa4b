"""Answers of the API server as exceptions."""

from __future__ import annotations

import pytest

from tensafe_operator.runtime.api_errors import INVALID, ApiError, UnknownFields, error_of

PATCHED = ' "" is invalid: patch: Invalid value: "{\\"spec\\":{\\"lora\\":1}}": '


@pytest.mark.parametrize("fields", [["spec.lora.initFrom"], ["spec.a[0].b", "status.c"]])
def test_fields_that_would_be_dropped_are_named(fields: list[str]) -> None:
    unknown = ", ".join(f'unknown field "{field}"' for field in fields)
    error = error_of(INVALID, {}, f"{PATCHED}strict decoding error: {unknown}")
    assert isinstance(error, UnknownFields) and str(error) == ", ".join(fields)


@pytest.mark.parametrize(
    "message",
    [
        'spec.model.name: Invalid value: "x: strict decoding error: unknown field \\"spec\\"": too long',
        f'{PATCHED}strict decoding error: duplicate field "spec"',
        "tensafetrainingjobs.tensafe.io \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied "
        'request: x: strict decoding error: unknown field "spec.lora"',
    ],
    ids=["text of a user", "another error", "text of a policy"],
)
def test_other_refusals_name_no_field(message: str) -> None:
    error = error_of(INVALID, {}, message)
    assert type(error) is ApiError and str(error) == message
