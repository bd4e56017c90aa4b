"""A real control plane for tests that are marked `cluster`, and a namespace for each of them.

Hypothesis has no deadline for an example, because a virtual machine may pause for a while.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.programs.controlplane import ControlPlane
from tests.support.roles import install_roles

# Imports and collected tests create millions of objects that stay. By default, the garbage collector looks at them so
# often that collecting all tests takes 12 s instead of 10 s.
gc.set_threshold(100_000, 50, 50)

CRDS = Path(__file__).parents[1] / "crds"
_NUMBERS = itertools.count(1)

hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this test process, with TenSafe's CRDs and policies, and the roles of the chart."""
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        plane.kubectl("apply", "-f", str(CRDS))
        plane.wait_for_crds()
        install_roles(plane)
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace for the test, with its default service account."""
    name = f"clinic-{next(_NUMBERS)}"
    control_plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name
