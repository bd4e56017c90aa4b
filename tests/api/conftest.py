"""The shortest useful manifest, and a way to change it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from e2e.platform.fixtures.manifests import MINIMAL, changed


@pytest.fixture
def minimal() -> dict[str, Any]:
    """The shortest useful manifest, as a mapping of one's own."""
    return copy.deepcopy(MINIMAL)


@pytest.fixture
def manifest_with() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Makes the shortest useful manifest with the values at these dotted paths; None takes a field away."""
    return lambda changes: changed(MINIMAL, changes)
