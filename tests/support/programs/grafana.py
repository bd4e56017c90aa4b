"""Grafana's schema of dashboards: a program that is built once from the Go module of the Grafana Foundation SDK."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.programs.gotools import program


def executable() -> Path:
    """The program, built if the cache lacks it. Raises GoUnavailable where it cannot be built."""
    return program("grafana", "tensafe.io/e2e/grafana")


def schema_errors(dashboard: str) -> str:
    """What in the JSON of a dashboard does not fit the schema, one line for each field; empty if it fits."""
    done = subprocess.run([str(executable())], input=dashboard, capture_output=True, text=True, check=False)
    assert bool(done.stderr) == bool(done.returncode), done
    return done.stderr
