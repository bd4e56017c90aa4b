"""Wrong jobs on a real API server: each rule refuses what it should with our sentence, and accepts what it should.

The same table goes through `tensafe validate` (`tests/api`), so neither can be stricter than the other unnoticed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.platform.controlplane import ControlPlane
from e2e.platform.fixtures.manifests import BAD_INPUT, EXAMPLES, MINIMAL, MORE_REFUSED, Example, changed

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


@pytest.mark.parametrize(("changes", "sentence"), BAD_INPUT, ids=[str(changes) for changes, _ in BAD_INPUT])
def test_bad_input_is_refused_at_its_field(
    changes: dict[str, Any], sentence: str | None, control_plane: ControlPlane
) -> None:
    said = apply(control_plane, changed(MINIMAL, changes))
    assert said
    (path,) = changes
    if path in ("apiVersion", "kind"):
        return  # kubectl says that it knows no such kind
    assert path.rsplit(".", 1)[-1] in said
    assert "should match" not in said  # the form of a string, told as a regular expression
    if sentence and f'"{changes[path]}" ' in sentence and "none of" not in sentence:
        assert sentence.removeprefix(f'{path}: "{changes[path]}" ') in said


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("spec.cluster.workers", 3, "cannot change, because each worker adds a share of the noise"),
        ("spec.cluster.serviceAccountName", "another", "because only it may charge the ledger: create a new job"),
        ("spec.cluster.serviceAccountName", None, "because only it may charge the ledger: create a new job"),
        ("spec.lora.rank", 8, "spec.lora cannot change after creation: create a new job with another name"),
    ],
)
def test_what_cannot_change_does_not_change_in_suspension_either(
    path: str, value: Any, says: str, control_plane: ControlPlane, namespace: str
) -> None:
    job = changed(MINIMAL, {"metadata.namespace": namespace, "spec.suspend": True})
    control_plane.kubectl("apply", "-f", "-", text=json.dumps(job))
    assert says in apply(control_plane, changed(job, {path: value}))
    assert apply(control_plane, changed(job, {"spec.cluster.priorityClassName": "high"})) == ""
