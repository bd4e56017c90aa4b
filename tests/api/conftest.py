"""The shortest valid manifest, and a function that changes it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from e2e.platform.fixtures.manifests import MINIMAL, changed


@pytest.fixture
def minimal() -> dict[str, Any]:
    """A copy of the shortest valid manifest, as a mapping."""
    return copy.deepcopy(MINIMAL)


@pytest.fixture
def manifest_with() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that returns the shortest valid manifest with values at dotted paths; None removes a field."""
    return lambda changes: changed(MINIMAL, changes)
