"""The shortest valid manifest, and functions that change it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tensafe_api.manifest.validation import parse_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tests.support.manifests import MINIMAL, changed

ManifestWith = Callable[[Mapping[str, Any]], dict[str, Any]]


@pytest.fixture
def minimal() -> dict[str, Any]:
    """A copy of the shortest valid manifest, as a mapping."""
    return copy.deepcopy(MINIMAL)


@pytest.fixture
def manifest_with() -> ManifestWith:
    """A function that returns the shortest valid manifest with values at dotted paths; None removes a field."""
    return lambda changes: changed(MINIMAL, changes)


@pytest.fixture
def job(manifest_with: ManifestWith) -> Callable[..., TenSafeTrainingJob]:
    """A function that returns the shortest manifest with changes. It sets `noiseMultiplier` to avoid calibration."""

    def make(changes: Mapping[str, Any] | None = None, *, calibrated: bool = False) -> TenSafeTrainingJob:
        given_noise = {} if calibrated else {"spec.privacy.noiseMultiplier": "1"}
        return parse_job(manifest_with({**given_noise, **(changes or {})}))

    return make
