"""Wrong jobs on a real API server: each rule refuses what it should with our sentence, and accepts what it should.

The same table goes through `tensafe validate` (`tests/api`), so neither can be stricter than the other unnoticed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from controlplane import ControlPlane
from jobs import BAD_INPUT, EXAMPLES, MINIMAL, MORE_REFUSED, Example, changed

pytestmark = pytest.mark.cluster


def apply(plane: ControlPlane, manifest: dict[str, Any]) -> str:
    """What `kubectl apply` says, empty where it would accept: nothing is stored."""
    text = json.dumps(manifest)
    done = plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text, check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.at)
def test_a_rule_refuses_and_accepts(example: Example, control_plane: ControlPlane) -> None:
    said = apply(control_plane, changed(MINIMAL, example.refused))
    assert example.says in said
    assert example.at in said
    assert apply(control_plane, changed(MINIMAL, example.kept)) == ""


@pytest.mark.parametrize("changes", MORE_REFUSED, ids=str)
def test_more_is_refused(changes: dict[str, Any], control_plane: ControlPlane) -> None:
    assert apply(control_plane, changed(MINIMAL, changes))


@pytest.mark.parametrize("changes", [changes for changes, _ in BAD_INPUT], ids=str)
def test_bad_input_is_refused_at_its_field(changes: dict[str, Any], control_plane: ControlPlane) -> None:
    said = apply(control_plane, changed(MINIMAL, changes))
    assert said
    (path,) = changes
    if path not in ("apiVersion", "kind"):  # of which kubectl says that it knows no such kind
        assert path.rsplit(".", 1)[-1] in said
