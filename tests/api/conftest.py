"""The shortest useful manifest, and a way to change it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

MINIMAL: dict[str, Any] = {
    "apiVersion": "tensafe.io/v1alpha1",
    "kind": "TenSafeTrainingJob",
    "metadata": {"name": "claims-triage"},
    "spec": {
        "model": {"name": "Qwen/Qwen3-0.6B"},
        "dataset": {
            "uri": "s3://clinic/claims/",
            "columns": {"messages": "messages"},
            "unit": {"kind": "User", "column": "patient_id", "maxExamplesPerUnit": 8, "atLeast": 5000},
        },
        "privacy": {"targetEpsilon": "8"},
        "checkpoint": {"uri": "s3://models/claims-triage/"},
        "cluster": {"workers": 2, "serviceAccountName": "trainer"},
    },
}


def changed(manifest: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the manifest with the values at these dotted paths; None takes a field away."""
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = path.split(".")
        here = result
        for name in parents:
            here = here.setdefault(name, {})
        if value is None:
            here.pop(last, None)
        else:
            here[last] = value
    return result


@pytest.fixture
def minimal() -> dict[str, Any]:
    """The shortest useful manifest, as a mapping of one's own."""
    return copy.deepcopy(MINIMAL)


@pytest.fixture
def manifest_with() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Makes the shortest useful manifest with the values at these dotted paths; None takes a field away."""
    return lambda changes: changed(MINIMAL, changes)
