"""Helm, and our chart as it renders it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from e2e.platform.gotools import program

CHART = Path(__file__).resolve().parents[2] / "charts" / "tensafe"
_PACKAGE = "helm.sh/helm/v3"
_UTIL = f"{_PACKAGE}/pkg/chartutil"
_KUBERNETES = f"-X {_UTIL}.k8sVersionMajor=1 -X {_UTIL}.k8sVersionMinor=36"
"""What a release of Helm is linked with: without it, `helm template` believes in Kubernetes 1.20."""


def helm(*arguments: str, kubeconfig: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Helm; `kubeconfig` where it is to talk to a cluster."""
    binary = program("helm", f"{_PACKAGE}/cmd/helm", name="helm", linker_flags=_KUBERNETES)
    command = [str(binary), *(["--kubeconfig", str(kubeconfig)] if kubeconfig else []), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not (check and done.returncode), f"helm {' '.join(arguments)}: {done.stderr}"
    return done


def given(values: dict[str, Any]) -> list[str]:
    """Helm's arguments that set values of a chart."""
    return [part for name, value in values.items() for part in ("--set-json", f"{name}={json.dumps(value)}")]


def render_chart(
    values: dict[str, Any] | None = None, *, release: str = "tensafe", namespace: str = "tensafe-system"
) -> list[dict[str, Any]]:
    """The documents that `helm template` writes with these values."""
    text = helm("template", release, str(CHART), "--namespace", namespace, *given(values or {})).stdout
    return [document for document in yaml.safe_load_all(text) if document]
