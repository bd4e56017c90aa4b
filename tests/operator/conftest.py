"""A job on a control plane with KubeRay's CRDs, reconciled with the rights of the chart's roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.platform.controlplane import ControlPlane
from e2e.platform.fakes.kuberay import install_kuberay_crds
from e2e.platform.fixtures.job_harness import JobHarness
from e2e.platform.fixtures.roles import install_roles


@pytest.fixture(scope="session")
def kubeconfig(control_plane: ControlPlane) -> Path:
    """The operator's kubeconfig file."""
    install_kuberay_crds(control_plane)
    return install_roles(control_plane)


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str, kubeconfig: Path) -> JobHarness:
    return JobHarness(control_plane, namespace, kubeconfig)
