"""A job's cluster, under the chart's roles, on a control plane that knows KubeRay's kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster, install_kuberays_kinds
from roles import install_roles

from e2e.cluster.controlplane import ControlPlane


@pytest.fixture(scope="session")
def kubeconfig(control_plane: ControlPlane) -> Path:
    """The operator's."""
    install_kuberays_kinds(control_plane)
    return install_roles(control_plane)


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str, kubeconfig: Path) -> Cluster:
    return Cluster(control_plane, namespace, kubeconfig)
