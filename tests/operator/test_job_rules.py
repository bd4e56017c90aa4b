"""Each rule of the CRD refuses wrong jobs with its own message and accepts right ones, on a real API server.

The same examples go through `tensafe validate` (`tests/api`), so that neither is stricter than the other.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.manifests import MINIMAL, changed
from tests.support.programs.api_server import RequestRejected
from tests.support.programs.controlplane import ControlPlane
from tests.support.rejected_manifests import INVALID_MANIFESTS
from tests.support.rule_examples import MORE_REJECTED, RULE_EXAMPLES, RuleExample, all_rules

pytestmark = pytest.mark.cluster

MESSAGES = {rule.id: rule.message for rule in all_rules()}

UNKNOWN_KINDS = [each for each, _ in INVALID_MANIFESTS if each.keys() & {"apiVersion", "kind"}]
INVALID_JOBS = [each for each in INVALID_MANIFESTS if not each[0].keys() & {"apiVersion", "kind"}]


def apply(plane: ControlPlane, manifest: dict[str, Any], namespace: str = "default") -> str:
    """The API server's error, empty if it accepts the job. It is a dry run: nothing is stored."""
    # JSON has no NaN. kubectl reads it as a text.
    job = json.loads(json.dumps(changed(manifest, {"metadata.namespace": namespace})), parse_constant=str)
    try:
        plane.api.apply(job, "?dryRun=All&fieldValidation=Strict")
    except RequestRejected as error:
        return str(error)
    return ""


@pytest.mark.parametrize("example", RULE_EXAMPLES, ids=lambda example: f"{example.rule}-{example.field}")
def test_rule_refuses_wrong_values_and_accepts_right_ones(example: RuleExample, control_plane: ControlPlane) -> None:
    error = apply(control_plane, changed(MINIMAL, example.rejected))
    assert MESSAGES[example.rule] in error
    assert example.field in error
    assert apply(control_plane, changed(MINIMAL, example.accepted)) == ""


@pytest.mark.parametrize("changes", MORE_REJECTED, ids=str)
def test_further_wrong_values_are_refused(changes: dict[str, Any], control_plane: ControlPlane) -> None:
    assert apply(control_plane, changed(MINIMAL, changes))


@pytest.mark.parametrize("changes", UNKNOWN_KINDS, ids=str)
def test_unknown_kind_is_refused_by_kubectl(changes: dict[str, Any], control_plane: ControlPlane) -> None:
    text = json.dumps(changed(MINIMAL, changes))
    assert control_plane.kubectl("apply", "--dry-run=server", "-f", "-", text=text, check=False).returncode


@pytest.mark.parametrize(("changes", "sentence"), INVALID_JOBS, ids=[str(changes) for changes, _ in INVALID_JOBS])
def test_error_of_bad_input_names_its_field(
    changes: dict[str, Any], sentence: str | None, control_plane: ControlPlane
) -> None:
    error = apply(control_plane, changed(MINIMAL, changes))
    assert error
    (path,) = changes
    assert path.rsplit(".", 1)[-1] in error
    assert "should match" not in error  # a form described by a regular expression
    if sentence and f'"{changes[path]}" ' in sentence and "none of" not in sentence:
        assert sentence.removeprefix(f'{path}: "{changes[path]}" ') in error


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.cluster.workers", 3, "cannot change, because each worker adds a share of the noise"),
        ("spec.cluster.worker", {"gpus": 2}, "spec.cluster.worker.gpus cannot change, except between 0 and 1"),
        ("spec.cluster.serviceAccountName", "another", "because only it may charge the ledger: create a new job"),
        ("spec.cluster.serviceAccountName", None, "because only it may charge the ledger: create a new job"),
        ("spec.lora.rank", 8, "spec.lora cannot change after creation: create a new job with another name"),
    ],
)
def test_immutable_fields_are_immutable_in_suspension_too(
    path: str, value: Any, message: str, control_plane: ControlPlane, namespace: str
) -> None:
    job = changed(MINIMAL, {"metadata.namespace": namespace, "spec.suspend": True})
    control_plane.api.create(job)
    assert message in apply(control_plane, changed(job, {path: value}), namespace)
    mutable = {"spec.cluster.priorityClassName": "high", "spec.cluster.worker": {"gpus": 1}}
    assert apply(control_plane, changed(job, mutable), namespace) == ""
