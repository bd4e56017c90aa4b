"""Helm as a command, and the chart as Helm renders it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.programs.gotools import program

CHART = Path(__file__).resolve().parents[3] / "charts" / "tensafe"
_PACKAGE = "helm.sh/helm/v3"
_UTIL = f"{_PACKAGE}/pkg/chartutil"
_KUBERNETES = f"-X {_UTIL}.k8sVersionMajor=1 -X {_UTIL}.k8sVersionMinor=36"
"""Linker flags of Helm's own releases. Without them `helm template` assumes Kubernetes 1.20."""


def helm(*arguments: str, kubeconfig: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Helm, with a cluster if `kubeconfig` is given.

    Raises:
        AssertionError: with `check`, where Helm fails.
    """
    command = helm_command(*arguments, kubeconfig=kubeconfig)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not (check and done.returncode), f"helm {' '.join(arguments)}: {done.stderr}"
    return done


def helm_command(*arguments: str, kubeconfig: Path | None = None) -> list[str]:
    """Helm's command line, with the program that is built from its Go module."""
    binary = program("helm", f"{_PACKAGE}/cmd/helm", name="helm", linker_flags=_KUBERNETES)
    return [str(binary), *(["--kubeconfig", str(kubeconfig)] if kubeconfig else []), *arguments]


def set_arguments(values: dict[str, Any]) -> list[str]:
    """Helm's arguments for values of a chart, by dotted path."""
    return [part for name, value in values.items() for part in ("--set-json", f"{name}={json.dumps(value)}")]


def render_chart(
    values: dict[str, Any] | None = None,
    *,
    release: str = "tensafe",
    namespace: str = "tensafe-system",
    chart: Path = CHART,
    tests: bool = False,
) -> list[dict[str, Any]]:
    """Render a chart with these values; return its documents, with those of `helm test` only if `tests`."""
    options = ("--namespace", namespace, *([] if tests else ["--skip-tests"]))
    text = helm("template", release, str(chart), *options, *set_arguments(values or {})).stdout
    return [document for document in yaml.safe_load_all(text) if document]
